"""DreamZero's adapter on a small head of ours: what it remembers, two noises, and a video beside the actions."""

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import keystone_robotics as keystone
from keystone_robotics import KeystoneError
from keystone_robotics.sample.families.dreamzero import upstream
from keystone_robotics.sample.families.dreamzero.upstream import memory_of, remember

from . import contract, drift
from .dreamzero_like import DIMS, FRAME, HORIZON, REAL, DreamZeroLike, inputs, predict


@pytest.fixture(params=[0, 2], ids=["first", "later"])
def head(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Before the first observation of an episode, or after two."""
    torch.manual_seed(0)
    head = DreamZeroLike().eval().requires_grad_(False)
    for _ in range(request.param):
        predict(head, 1)
    yield head
    keystone.detach(head)


def from_here(head: Any, ask: Callable[..., Tensor], rows: int) -> Callable[[], Tensor]:
    """A call, always with what the head remembers now."""
    memory = memory_of(head)

    def call() -> Tensor:
        remember(head, memory)
        return ask(head, rows)

    return call


def predict_actions_first(head: Any, rows: int, steps: int = 4) -> Tensor:
    """With the noise of the actions drawn before that of the video, as KeyStone draws."""
    actions = torch.randn(rows, HORIZON, DIMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            head, "generate_noise", lambda shape, **_: actions if shape == actions.shape else torch.randn(shape)
        )
        patch.setattr(head, "num_inference_steps", steps)
        return predict(head, rows)


@pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
def test_candidates_are_single_calls(head: Any, rows: int, k: int) -> None:
    if head.current_start_frame:
        predict(head, rows)
    calls = (from_here(head, ask, rows) for ask in (predict, predict_actions_first))
    assert contract.largest_difference(head, next(calls), k, alone=next(calls), **REAL) < 1e-5


def test_candidates_take_that_many_steps(head: Any) -> None:
    call, alone = (from_here(head, ask, 1) for ask in (predict, partial(predict_actions_first, steps=2)))
    assert contract.largest_difference(head, call, 4, alone=alone, steps=2, **REAL) < 1e-5
    with pytest.raises(KeystoneError, match="give 4 or fewer"):
        keystone.attach(head, k=4, steps=5, **REAL)


def test_one_candidate_is_untouched_and_nothing_is_left_behind(head: Any) -> None:
    contract.assert_one_is_untouched(head, from_here(head, predict, 2), **REAL)
    contract.assert_no_trace(head, from_here(head, predict, 2), **REAL)


def test_kept_rounds_hold_no_candidates(head: Any) -> None:
    contract.assert_kept_rounds_hold_no_candidates(head, partial(predict, head, 1), **REAL)


def test_encoded_once(head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    own = head.vae.encode
    monkeypatch.setattr(head.vae, "encode", lambda image: rows.append(len(image)) or own(image))
    keystone.attach(head, k=8, check=False, **REAL)
    predict(head, 1)
    assert rows == [1]


@pytest.mark.parametrize("k", [4, "2..8"])
def test_an_episode_is_remembered_as_one_call_remembers_it(head: Any, k: Any) -> None:
    alone = from_here(head, predict, 1)
    remembered = []
    for candidates in (1, k):
        keystone.attach(head, k=candidates, keep=2, **REAL)
        alone()
        handle = keystone.attached(head)
        if handle.stats["rounds"]:
            before = memory_of(head)
            handle.replay(0)
            assert all(memory_of(head)[name] is value for name, value in before.items() if isinstance(value, Tensor))
        predict(head, 1)
        remembered.append((head.current_start_frame, head.kv_cache1[0], head.kv_cache_neg[0], head.ys))
        keystone.detach(head)
    torch.testing.assert_close(*remembered)


@pytest.mark.parametrize("rule", ["keystone", "core-mean"])
def test_the_video_is_that_of_the_selected_candidate(head: Any, rule: str) -> None:
    rounds: list[Any] = []
    handle = keystone.attach(head, k=8, rule=rule, check=False, **REAL)
    handle.subscribe(rounds.append)
    start = head.current_start_frame
    with contract.recorded(upstream, "denoise") as draws:
        output = head.lazy_joint_video_action(None, inputs(1))
    ((drawn, _),) = draws
    assert drawn["video_pred"].shape == (8, 2 if start else 3, FRAME)
    assert len(drawn["video_pred"].unique(dim=0)) == 8
    assert torch.equal(output["action_pred"], rounds[0].selection.chunk)
    nearest = (drawn["action_pred"] - output["action_pred"]).flatten(1).norm(dim=1).argmin()
    assert torch.equal(output["video_pred"][0], drawn["video_pred"][nearest])


def test_k_becomes_one_while_a_round_begins_and_the_observation_is_remembered(
    head: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = from_here(head, predict, 1)
    chunk, remembered = alone(), (head.current_start_frame, head.kv_cache1[0])
    engine = keystone.attach(head, k=4, **REAL).engine
    monkeypatch.setattr(upstream, "obstacle", lambda head: setattr(engine, "k", 1))
    torch.testing.assert_close((alone(), (head.current_start_frame, head.kv_cache1[0])), (chunk, remembered))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("ip_size", 2, "two processes"),
        ("trt_engine", object(), "TensorRT"),
        ("dynamic_cache_schedule", True, "depend on each"),
    ],
)
def test_what_cannot_run_k_wide_is_refused(head: Any, name: str, value: Any, reason: str) -> None:
    keystone.attach(head, k=4, **REAL)
    setattr(head, name, value)
    with pytest.raises(KeystoneError, match=reason):
        predict(head, 1)
    keystone.detach(head)
    with pytest.raises(KeystoneError, match=reason):
        keystone.attach(head, k=4, **REAL)


def test_found_in_its_policy_which_must_be_told_what_is_real(head: Any) -> None:
    policy = SimpleNamespace(trained_model=SimpleNamespace(action_head=head))
    assert keystone.attach(policy, k=4, **REAL).adapter == "dreamzero"
    keystone.detach(policy)
    with pytest.raises(KeystoneError, match="Missing: dims and steps"):
        keystone.attach(policy, k=4)


def test_a_loop_that_has_changed_is_refused_and_leaves_what_was_remembered(
    head: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keystone.attach(head, k=4, **REAL)
    before = memory_of(head)
    monkeypatch.setattr(
        "keystone_robotics.sample.families.dreamzero.upstream.widen", lambda value, k: value.repeat_interleave(k, 0) / k
    )
    with pytest.raises(KeystoneError, match="self-check failed"):
        predict(head, 1)
    assert memory_of(head) == before


def test_a_method_that_takes_one_argument_more_is_said_in_words(head: Any) -> None:
    predict_one = partial(predict, head, 1)
    assert drift.assert_called_methods(head, "upstream_like", predict_one, **REAL)
    drift.assert_overridden_methods(head, "dreamzero", predict_one, **REAL)
