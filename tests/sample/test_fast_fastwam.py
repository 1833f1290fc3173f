"""FastWAM's fast path in LeRobot's own policy: the same candidates as single calls, and nothing computed twice."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import keystone_robotics as keystone
from keystone_robotics.sample.check import TOLERANCES
from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.families.fastwam.denoiser import blocks_of, denoise
from tiny import POLICIES
from tiny.common import IMAGE, features
from tiny.shapes import Shapes

FASTWAM = POLICIES["fastwam"]
HEIGHT, WIDTH = 96, 192
VIDEO, ACTIONS = (HEIGHT // 32) * (WIDTH // 32), 8
"""Tokens of the first frame, and of a candidate."""


def build(**overrides: Any) -> Any:
    size = {**features(image_shape=(3, HEIGHT, WIDTH)), "image_size": (HEIGHT, WIDTH)}
    return FASTWAM.build(**size, **overrides).requires_grad_(False)


@functools.cache
def built(**overrides: Any) -> Any:
    return build(**overrides)


@pytest.fixture
def policy() -> Iterator[Any]:
    yield built()
    keystone.detach(built())


def batch(rows: int) -> dict[str, Any]:
    """Observations whose instructions differ in length."""
    found = FASTWAM.batch(rows)
    found[IMAGE] = torch.rand(rows, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(2))
    for row in range(rows):
        found["context_mask"][row, 7 - 2 * row :] = False
    return found


def drawn(policy: Any, rows: int, k: int, path: str = "fast") -> Tensor:
    """The candidates (B, K, T, D) of a round in which each was compared with a single call."""
    rounds: list[Any] = []
    handle = keystone.attach(policy, k=k, seed=0, check="all", fast=path == "fast")
    handle.subscribe(rounds.append)
    try:
        FASTWAM.predict(policy, batch(rows))
    finally:
        keystone.detach(policy)
    finding, candidates = handle.engine.finding, rounds[0].candidates
    assert (handle.path, finding.compared, candidates.shape[:2]) == (path, k, (rows, k))
    assert finding.difference <= 1e-5 * max(1.0, float(candidates.abs().max()))
    return candidates


@pytest.mark.parametrize(("rows", "k"), [(1, 2), (1, 16), (3, 4)])
def test_both_paths_draw_what_single_calls_draw(policy: Any, rows: int, k: int) -> None:
    fast, plain = (drawn(policy, rows, k, path) for path in ("fast", "plain"))
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


def test_attention_in_the_type_of_the_weights() -> None:
    drawn(built(fp32_attention=False), rows=3, k=4)


def test_it_is_put_into_evaluation_mode_as_it_does_itself(policy: Any) -> None:
    drawn(policy.train(), rows=1, k=4)


@pytest.mark.parametrize("fp32", [True, False])
def test_bfloat16(fp32: bool) -> None:
    """The action expert alone: the video expert of LeRobot 0.6.1 needs CUDA for it."""
    policy = build(fp32_attention=fp32)
    policy.model.action_expert.to(torch.bfloat16)
    for block in blocks_of(policy.model.mot):
        block.to(torch.bfloat16)
    handle = keystone.attach(policy, k=8, seed=0, check="all")
    chunk = FASTWAM.predict(policy, batch(3))
    assert handle.path == "fast"
    assert handle.engine.finding.difference <= TOLERANCES[torch.bfloat16] * max(1.0, float(chunk.abs().max()))


def hide_from_all(mask: Tensor) -> None:
    mask[VIDEO:, 5:9] = False


def hide_from_some(mask: Tensor) -> None:
    mask[VIDEO:, :VIDEO] = torch.rand(ACTIONS, VIDEO, generator=torch.Generator().manual_seed(0)) < 0.3
    mask[VIDEO:, 7] = False
    mask[VIDEO, :VIDEO] = False  # the first action sees none at all


def hide_video(mask: Tensor) -> None:
    mask[VIDEO:, :VIDEO] = False


def hide_later_actions(mask: Tensor) -> None:
    mask[VIDEO:, VIDEO:].tril_()


@pytest.mark.parametrize("change", [hide_from_all, hide_from_some, hide_video, hide_later_actions])
def test_masks_are_kept_to(policy: Any, change: Callable[[Tensor], None], monkeypatch: pytest.MonkeyPatch) -> None:
    whole, own_mask = drawn(policy, rows=1, k=4), policy.model._build_mot_attention_mask

    def changed(**options: Any) -> Tensor:
        mask = own_mask(**options)
        assert mask.shape == (VIDEO + ACTIONS, VIDEO + ACTIONS)
        change(mask)
        return mask

    monkeypatch.setitem(vars(policy.model), "_build_mot_attention_mask", changed)
    assert (drawn(policy, rows=1, k=4) - whole).abs().max() > 1e-3, "the mask has no effect: this test has no teeth"


def other_class(part: Callable[[Any], Any]) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        part(model).__class__ = type("Other", (type(part(model)),), {})

    return change


def replace_method(part: Callable[[Any], Any], name: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        vars(part(model))[name] = functools.partial(getattr(part(model), name))

    return change


def learn_a_norm(model: Any) -> None:
    block = blocks_of(model.mot)[1]
    block.norm1 = nn.LayerNorm(block.dim, block.eps)


def another_norm(model: Any) -> None:
    block = blocks_of(model.mot)[0]
    block.norm3 = nn.RMSNorm(block.dim, block.eps)
    block.apply_norm3 = block.norm3


@pytest.mark.parametrize(
    "change",
    [
        other_class(lambda model: model.action_expert),
        other_class(lambda model: model.mot),
        other_class(lambda model: model.mot.layers[1]),
        other_class(lambda model: blocks_of(model.mot)[1]),
        replace_method(lambda model: model, "_predict_action_noise_with_cache"),
        replace_method(lambda model: model.mot, "forward_action_with_video_cache"),
        replace_method(lambda model: model.mot.layers[0], "forward"),
        replace_method(lambda model: model.action_expert, "pre_dit"),
        learn_a_norm,
        another_norm,
    ],
)
def test_what_is_not_known_runs_as_it_is(change: Callable[[Any], None]) -> None:
    policy = build()
    change(policy.model)
    handle = keystone.attach(policy, k=3, seed=0, check="all")
    FASTWAM.predict(policy, batch(2))
    assert handle.path == "plain"


def test_a_change_that_cannot_be_seen_is_found_by_the_self_check(caplog: pytest.LogCaptureFixture) -> None:
    policy = build()
    kind = type(policy.model.action_expert)
    policy.model.action_expert.__class__ = type(
        kind.__name__, (kind,), {"post_dit": lambda self, tokens, state: 2 * self.head(tokens)}
    )
    handle = keystone.attach(policy, k=3, seed=0, check="all")
    FASTWAM.predict(policy, batch(2))
    assert handle.path == "plain"
    assert "fast path is not used" in caplog.text


@pytest.mark.parametrize("fast", [True, False])
def test_cache_is_neither_copied_nor_appended_to(policy: Any, fast: bool) -> None:
    rows, k = 2, 5
    keystone.attach(policy, k=k, seed=0, fast=fast)
    FASTWAM.predict(policy, batch(rows))
    with Shapes() as shapes:
        FASTWAM.predict(policy, batch(rows))
    assert any(VIDEO in shape for shape in shapes.seen), "the video is not seen: this test has no teeth"
    tensors = [shape for shape in shapes.seen if len(shape) > 2]  # a mask may have a row or column for everything
    appended = [shape for shape in tensors if VIDEO + ACTIONS in shape]
    copied = [shape for shape in tensors if shape[0] == k and VIDEO in shape]
    assert (not appended, not copied) == (fast, fast)


def test_what_the_candidates_share_is_computed_once(policy: Any) -> None:
    rows, k = 3, 4
    expert, block = policy.model.action_expert, blocks_of(policy.model.mot)[0]
    sizes: dict[str, list[tuple[int, ...]]] = {}
    hooks = []

    def watch(name: str, module: nn.Module) -> None:
        seen = sizes.setdefault(name, [])
        hooks.append(module.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[:-1]))))

    keystone.attach(policy, k=k, seed=0)
    FASTWAM.predict(policy, batch(rows))
    watch("text", expert.text_embedding)
    watch("keys of the text", block.cross_attn.k)
    watch("values of the text", block.cross_attn.v)
    watch("time", expert.time_embedding)
    watch("modulation", expert.time_projection)
    watch("own keys", block.self_attn.k)
    FASTWAM.predict(policy, batch(rows))
    for hook in hooks:
        hook.remove()
    steps = policy.config.num_inference_steps
    # Words of each row without its padding, and a token for the state; the time is embedded beside a text of no words.
    texts = [(1, 7 - 2 * row + 1) for row in range(rows)]
    assert sizes == {
        "text": [call for text in texts for call in (text, (steps, 0))],
        "keys of the text": texts,
        "values of the text": texts,
        "time": [(steps,)] * rows,
        "modulation": [(steps,)] * rows,
        "own keys": [(k, ACTIONS)] * steps * rows,
    }


@pytest.mark.parametrize("fast", [True, False])
def test_step_can_be_compiled(policy: Any, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[Any] = []

    def trace(engine: Engine, function: Any) -> Any:
        traced.append(function)
        return torch.compile(function, backend="eager", fullgraph=fast)

    monkeypatch.setattr(Engine, "compiled_step", trace)
    drawn(policy, rows=1, k=4, path="fast" if fast else "plain")
    assert (traced == [denoise]) == fast
