"""A fast path is taken only where it proves to be exact: how a session settles on one, whatever the policy."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import keystone_robotics as keystone
from keystone_robotics import KeystoneError
from keystone_robotics.profiling.store import ENOUGH
from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.families import ADAPTERS
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.proxies import is_replaced
from keystone_robotics.sample.request import NoiseSpec, SampleFn, SampleRequest


class Head(nn.Module):
    """Chunks (B, 4, 2) from a context (B, 8) and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.delay, self.guided = 0, False

    def reset(self) -> None:
        pass

    def sample(self, context: Tensor, noise: Tensor | None = None) -> Tensor:
        noise = torch.randn(len(context), 4, 2) if noise is None else noise
        return self.layer(context + noise.flatten(1)).unflatten(1, (4, 2))


class HeadOverride(SamplerOverride):
    def sample(self, context: Tensor) -> Tensor:
        own = super().sample
        self.drawn: list[str]

        def noted(name: str, draw: SampleFn) -> SampleFn:
            def call(noise: Tensor, k: int) -> Tensor:
                self.drawn.append(name)
                return draw(noise, k)

            return call

        request = SampleRequest(
            single=lambda: own(context),
            wide=noted("plain", lambda noise, k: own(widen(context, k), noise)),
            shared=noted("fast", lambda noise, k: self.faster(context, noise, k)),
            noise=NoiseSpec(len(context), (4, 2), "cpu"),
            delay=self.delay,
            guided=self.guided,
        )
        return self._keystone.run(request)


class HeadAdapter(Adapter):
    name = "head-with-a-fast-path"
    override = HeadOverride

    def owns(self, policy: Any) -> bool:
        return isinstance(policy, Head)

    def module(self, policy: Any) -> Any:
        return policy

    def window(self, config: Any) -> Window | None:
        return None


def exact(head: Head, context: Tensor, noise: Tensor, k: int) -> Tensor:
    return head.layer(context[:, None] + noise.unflatten(0, (-1, k)).flatten(2)).reshape(-1, 4, 2)


def slightly_wrong(head: Head, context: Tensor, noise: Tensor, k: int) -> Tensor:
    return exact(head, context, noise, k) + 3e-4


def broken(head: Head, context: Tensor, noise: Tensor, k: int) -> Tensor:
    raise RuntimeError("no such layer")


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    monkeypatch.setitem(ADAPTERS, HeadAdapter.name, HeadAdapter())
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        head = Head()
        for weight in head.parameters():
            weight.mul_(0.3)  # actions below 1, so that differences are absolute
        head.drawn = []
        yield head


def use(head: Head, faster: Callable[..., Tensor]) -> None:
    head.faster = lambda *args: faster(head, *args)


def test_exact_path_is_kept(head: Head, caplog: pytest.LogCaptureFixture) -> None:
    use(head, exact)
    handle = keystone.attach(head, k=8, seed=0, keep=2)
    rounds = []
    handle.subscribe(rounds.append)
    assert handle.path == "undecided"
    with caplog.at_level(logging.INFO, logger="keystone"):
        head.sample(torch.zeros(3, 8))
    assert (handle.path, handle.engine.finding.path) == ("fast", "fast")
    assert "fast path" in caplog.text
    assert "fast path" in repr(handle)
    head.sample(torch.zeros(3, 8))
    assert head.drawn == ["fast", "fast"]
    assert torch.equal(handle.replay(1), rounds[1].candidates)
    assert head.drawn == ["fast", "fast", "fast"]


@pytest.mark.parametrize(
    ("faster", "reason"), [(slightly_wrong, "differ from single calls"), (broken, "RuntimeError: no such layer")]
)
def test_path_that_is_not_exact_is_dropped_with_a_warning(
    head: Head, caplog: pytest.LogCaptureFixture, faster: Callable[..., Tensor], reason: str
) -> None:
    use(head, faster)
    handle = keystone.attach(head, k=8, seed=0)
    head.sample(torch.zeros(3, 8))
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "the fast path is not used" in warning.message
    assert reason in warning.message
    assert (handle.path, handle.engine.finding.path) == ("plain", "plain")
    head.sample(torch.zeros(3, 8))
    assert head.drawn == ["fast", "plain", "plain"]


def test_both_paths_choose_the_same_chunk(head: Head) -> None:
    use(head, exact)
    chunks = []
    for fast in (True, False):
        handle = keystone.attach(head, k=8, seed=0, fast=fast)
        chunks.append(head.sample(torch.ones(2, 8)))
        assert handle.path == ("fast" if fast else "plain")
        keystone.detach(head)
    torch.testing.assert_close(*chunks)


@pytest.mark.parametrize("options", [{"fast": False}, {"check": False}, {"k": 1}])
def test_fast_path_is_not_tried(head: Head, options: dict[str, Any]) -> None:
    use(head, exact)
    handle = keystone.attach(head, **{"k": 8, "seed": 0, **options})
    head.sample(torch.zeros(1, 8))
    assert head.drawn == ["plain"]
    assert handle.path == "plain"


def test_error_of_both_paths_is_raised_and_settles_nothing(head: Head, caplog: pytest.LogCaptureFixture) -> None:
    use(head, exact)
    handle = keystone.attach(head, k=8, seed=0)
    with pytest.raises(RuntimeError, match="must match the size"):
        head.sample(torch.zeros(1, 5))  # as the policy alone would fail
    assert handle.path == "undecided"
    assert not caplog.records
    head.sample(torch.zeros(1, 8))
    assert handle.path == "fast"


def test_seam_that_is_wrong_on_both_paths_is_refused(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    use(head, slightly_wrong)
    rightly = widen
    monkeypatch.setitem(globals(), "widen", lambda context, k: 1.1 + rightly(context, k))
    keystone.attach(head, k=8, seed=0)
    with pytest.raises(KeystoneError, match="differ from single calls"):
        head.sample(torch.zeros(3, 8))


@pytest.mark.parametrize("option", ["fast", "compile"])
def test_flags_must_be_true_or_false(head: Head, option: str) -> None:
    with pytest.raises(TypeError, match=f"{option}='yes': expected True or False"):
        keystone.attach(head, **{option: "yes"})


def test_adapter_without_a_step_cannot_be_compiled(head: Head) -> None:
    with pytest.raises(KeystoneError, match="adapter head-with-a-fast-path has no denoising step"):
        keystone.attach(head, compile=True)
    assert keystone.attached(head) is None


class Held(nn.Module):
    """A policy that encodes in bfloat16 and holds a head in float32."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.encoder, self.model = nn.Linear(8, 8).bfloat16(), head

    def reset(self) -> None:
        pass


class HeldAdapter(HeadAdapter):
    name = "held-head"

    def owns(self, policy: Any) -> bool:
        return isinstance(policy, Held)

    def module(self, policy: Any) -> Any:
        return policy.model

    def encoder_methods(self, policy: Any) -> list[tuple[Any, str]]:
        return [(policy.encoder, "forward")]


@pytest.mark.parametrize("options", [{"k": "auto"}, {"k": 8, "rule": "coherent"}])
def test_coarse_weights_outside_the_sampler_excuse_nothing(
    head: Head, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("KEYSTONE_PROFILES", str(tmp_path))
    monkeypatch.setitem(ADAPTERS, HeldAdapter.name, HeldAdapter())
    use(head, slightly_wrong)
    handle = keystone.attach(Held(head), **options)
    head.sample(torch.zeros(3, 8))
    assert handle.path == "plain"


def autocast(head: Head) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        head.sample(torch.zeros(1, 8))


def gradients(head: Head) -> None:
    with torch.enable_grad():
        head.sample(torch.zeros(1, 8))


def several(head: Head) -> None:
    head.sample(torch.zeros(3, 8))


def delayed(head: Head) -> None:
    head.delay = 1
    head.sample(torch.zeros(1, 8))


def guided(head: Head) -> None:
    head.guided = True
    head.sample(torch.zeros(1, 8))


SITUATIONS = [autocast, gradients, several, delayed, guided]


@pytest.mark.parametrize("other", SITUATIONS)
def test_every_situation_is_checked_once(
    head: Head, monkeypatch: pytest.MonkeyPatch, other: Callable[[Head], None]
) -> None:
    use(head, exact)
    handle = keystone.attach(head, k=8, seed=0)
    own, singles = Head.sample, []

    def counted(self: Head, context: Tensor, noise: Tensor | None = None) -> Tensor:
        singles.append(noise is None)
        return own(self, context, noise)

    monkeypatch.setattr(Head, "sample", counted)
    head.sample(torch.zeros(1, 8))
    for checks in (3, 0):
        singles.clear()
        other(head)
        assert sum(singles) == checks
        assert handle.path == "fast"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [(lambda *args: exact(*args) + 1, "differ from single calls"), (broken, "RuntimeError: no such layer")],
)
@pytest.mark.parametrize("other", SITUATIONS)
def test_path_that_is_wrong_in_another_situation_is_left_there_alone(
    head: Head,
    caplog: pytest.LogCaptureFixture,
    other: Callable[[Head], None],
    wrong: Callable[..., Tensor],
    reason: str,
) -> None:
    use(head, exact)
    handle = keystone.attach(head, k=8, seed=0)
    head.sample(torch.zeros(1, 8))
    assert handle.path == "fast"
    use(head, wrong)
    other(head)
    assert handle.path == "plain"
    assert "not used in rounds like this one" in caplog.text
    assert reason in caplog.text
    use(head, exact)
    head.delay, head.guided = 0, False
    for ask, path in ((lambda head: head.sample(torch.zeros(1, 8)), "fast"), (other, "plain")):
        head.drawn.clear()
        ask(head)
        assert (handle.path, head.drawn) == (path, [path]), "settled for this situation, and not tried again"
    assert len(caplog.records) == 1


def test_path_that_fails_later_costs_no_round(head: Head, caplog: pytest.LogCaptureFixture) -> None:
    use(head, exact)
    handle = keystone.attach(head, k=8, seed=0)
    head.sample(torch.zeros(1, 8))
    with pytest.raises(RuntimeError, match="must match the size"):
        head.sample(torch.zeros(1, 5))
    assert (handle.path, caplog.records) == ("fast", []), "it was the observation"
    head.drawn.clear()
    for faster, path in ((broken, "plain"), (exact, "fast"), (broken, "plain"), (exact, "plain")):
        use(head, faster)
        assert head.sample(torch.zeros(1, 8)).isfinite().all()
        assert handle.path == path
    assert head.drawn == ["fast", "plain", "fast", "fast", "plain", "plain"], "after the second time it is left"
    once, twice = (record.message for record in caplog.records)
    assert (
        "one round was drawn on the plain path, because the fast path failed with RuntimeError: no such layer" in once
    )
    assert "not used in rounds like this one" in twice
    assert handle.engine.paths.fast, "what was asked for stays what it was"


def test_memory_that_runs_out_in_the_check_decides_nothing(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    use(head, exact)
    handle = keystone.attach(head, k=8, seed=0)
    own, left = Head.sample, [torch.cuda.OutOfMemoryError("someone else took it, for a moment")]

    def once(self: Head, context: Tensor, noise: Tensor | None = None) -> Tensor:
        if left:
            raise left.pop()
        return own(self, context, noise)

    monkeypatch.setattr(Head, "sample", once)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        head.sample(torch.zeros(1, 8))
    assert handle.path == "undecided"
    head.sample(torch.zeros(1, 8))
    assert handle.path == "fast"


def test_memory_that_runs_out_is_no_reason_to_leave_the_fast_path(head: Head) -> None:
    use(head, exact)
    handle = keystone.attach(head, k=8, seed=0)
    head.sample(torch.zeros(1, 8))

    def small(head: Head, context: Tensor, noise: Tensor, k: int) -> Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory (simulated)")

    use(head, small)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        head.sample(torch.zeros(1, 8))
    use(head, exact)
    head.sample(torch.zeros(1, 8))
    assert (handle.path, head.drawn[-1]) == ("fast", "fast")


def test_path_says_how_the_last_round_was_drawn(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    use(head, exact)
    handle = keystone.attach(head, k=8, seed=0)
    head.sample(torch.zeros(1, 8))
    run = Engine.run
    with monkeypatch.context() as patch:  # an override that has no fast path for this observation
        patch.setattr(Engine, "run", lambda engine, request: run(engine, replace(request, shared=None)))
        head.sample(torch.zeros(1, 8))
        assert handle.path == "plain"
    head.sample(torch.zeros(1, 8))
    assert handle.path == "fast"


class HiddenEncoder(HeldAdapter):
    """Like openpi's: once attached, the policy no longer tells how it encodes."""

    def encoder_methods(self, policy: Any) -> list[tuple[Any, str]]:
        return [] if "_keystone" in vars(policy) else super().encoder_methods(policy)


def test_the_check_of_a_larger_k_still_knows_the_encoders(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTERS, HiddenEncoder.name, HiddenEncoder())
    use(head, exact)
    handle = keystone.attach(Held(head), k=1, seed=0)
    head.sample(torch.zeros(1, 8))
    handle.k = 4
    head.sample(torch.zeros(1, 8))
    assert (handle.engine.finding.k, handle.engine.finding.calls) == (4, {"forward": 0})


def test_k_waits_for_a_check_that_is_under_way(head: Head) -> None:
    use(head, exact)
    handle = keystone.attach(head, k=4, seed=0)
    setting = threading.Thread(target=setattr, args=(handle, "k", 8))
    with handle.engine.checking:
        setting.start()
        setting.join(0.1)
        assert handle.k == 4
    setting.join()
    assert handle.k == 8


def test_a_method_replaced_on_the_object_is_told_from_its_own() -> None:
    head = Head()
    assert not is_replaced(head, "sample")
    head.sample = head.sample  # how others undo a replacement
    assert not is_replaced(head, "sample")
    head.sample = torch.compile(head.sample, backend="eager")
    assert is_replaced(head, "sample")


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_one_candidate_is_measured_as_it_would_be_drawn(
    head: Head, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temperature: float
) -> None:
    """With ``k="auto"`` on a policy with a fast path: one candidate is the policy's own code, unless it is asked to differ."""
    drawn: list[int] = []
    use(head, lambda head, context, noise, k: drawn.append(k) or exact(head, context, noise, k))
    singles, own = [0], Head.sample

    def counted(self: Head, context: Tensor, noise: Tensor | None = None) -> Tensor:
        singles[0] += noise is None
        return own(self, context, noise)

    monkeypatch.setattr(Head, "sample", counted)
    monkeypatch.setattr("keystone_robotics.profiling.auto.KS", (1, 4))
    keystone.attach(head, k="auto", temperature=temperature, profiles=tmp_path)
    for _ in range(2):  # the second round finds K
        head.sample(torch.zeros(1, 8))
    measured = 3 + ENOUGH  # of each K: to see whether it is worth trying, and in earnest
    assert drawn.count(1) >= measured if temperature != 1.0 else 1 not in drawn
    assert singles[0] >= 3 + (measured if temperature == 1.0 else 0)  # three of the self-check
