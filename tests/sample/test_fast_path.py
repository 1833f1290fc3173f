"""A fast path is taken only where it proves to be exact: how a session settles on one, whatever the policy."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import keystone
from keystone import KeystoneError
from keystone.sample.adapter import Adapter, Seam, Window
from keystone.sample.adapters import ADAPTERS
from keystone.sample.widen import widen

Draw = Callable[[Tensor, int], Tensor]


class Head(nn.Module):
    """Chunks (B, 4, 2) from a context (B, 8) and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def sample(self, context: Tensor, noise: Tensor | None = None) -> Tensor:
        noise = torch.randn(len(context), 4, 2) if noise is None else noise
        return self.layer(context + noise.flatten(1)).unflatten(1, (4, 2))


class HeadSeam(Seam):
    def sample(self, context: Tensor) -> Tensor:
        own = super().sample
        self.drawn: list[str]

        def noted(name: str, draw: Draw) -> Draw:
            def call(noise: Tensor, k: int) -> Tensor:
                self.drawn.append(name)
                return draw(noise, k)

            return call

        return self._keystone.round(
            lambda: own(context),
            noted("plain", lambda noise, k: own(widen(context, k), noise)),
            fast=noted("fast", lambda noise, k: self.faster(context, noise, k)),
            batch=len(context),
            shape=(4, 2),
            device="cpu",
        )


class HeadAdapter(Adapter):
    name = "head-with-a-fast-path"
    seam = HeadSeam

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
    handle.on_round = rounds.append
    assert handle.path == "undecided"
    with caplog.at_level(logging.INFO, logger="keystone"):
        head.sample(torch.zeros(3, 8))
    assert (handle.path, handle.session.finding.path) == ("fast", "fast")
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
    assert (handle.path, handle.session.finding.path) == ("plain", "plain")
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
