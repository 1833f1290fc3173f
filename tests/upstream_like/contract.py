"""What every adapter promises, checked on any object: on our own small models here, on other projects' code in upstream/."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import keystone_robotics as keystone
from keystone_robotics.handle import RoundEvent
from keystone_robotics.sample import engine as engine_module
from keystone_robotics.sample import noise as noise_module
from keystone_robotics.sample.noise import FixedNoise, initial_noise

Predict = Callable[[], Tensor]


@contextmanager
def recorded(module: Any, name: str) -> Iterator[list[Any]]:
    """What a function of this module returns in this block."""
    own, returned = getattr(module, name), []

    def record(*args: Any, **kwargs: Any) -> Any:
        returned.append(own(*args, **kwargs))
        return returned[-1]

    with patch.object(module, name, record):
        yield returned


@contextmanager
def recorded_noise() -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """The initial noise (B * K, T, D) of every round in this block, and what samplers drew after it."""
    initial: list[Tensor] = []
    later: list[Tensor] = []

    def recorder(noises: list[Tensor]) -> Callable[..., Tensor]:
        def record(seeds: Sequence[int], k: int, shape: Sequence[int], uniform: bool = False, first: int = 0) -> Tensor:
            noise = initial_noise(seeds, k, shape, uniform, first)
            noises.append(noise.clone())
            return noise

        return record

    with (
        patch.object(engine_module, "initial_noise", recorder(initial)),
        patch.object(noise_module, "initial_noise", recorder(later)),
    ):
        yield initial, later


def largest_difference(
    policy: Any,
    predict: Predict,
    k: int,
    path: str = "plain",
    alone: Predict | None = None,
    returned: Callable[[Tensor], Tensor] = lambda candidates: candidates,
    **options: Any,
) -> float:
    """Between the K candidates of a round and K calls of the policy alone, each given the noise of one candidate; ``alone``
    makes these calls if it is not ``predict``; ``returned`` is what ``predict`` makes of candidates.

    Also: what comes out is the candidate that was chosen, no two candidates are alike, and the self-check agrees, on the path
    that was expected.
    """
    rounds: list[RoundEvent] = []
    handle = keystone.attach(policy, k=k, seed=7, check="all", fast=path == "fast", **options)
    handle.subscribe(rounds.append)
    try:
        with recorded_noise() as (initial, later):
            chunk = predict()
    finally:
        keystone.detach(policy)
    (done,) = rounds
    candidates = returned(done.candidates)
    batch = candidates.shape[0]
    assert candidates.shape[1] == k
    assert handle.engine.finding.compared == k
    assert handle.path == path
    assert torch.equal(chunk, candidates[torch.arange(batch), torch.as_tensor(done.selection.index)])
    spread = (candidates[:, :, None] - candidates[:, None]).abs().flatten(3).amax(3)
    assert (spread + torch.eye(k)).min() > 1e-3, "two candidates are alike"
    largest = 0.0
    for j in range(k):
        with FixedNoise(*(noise.unflatten(0, (batch, k))[:, j] for noise in (initial[0], *later))) as given:
            single = (alone or predict)()
        assert given.left == 0, "the policy did not draw the noise it was given"
        assert single.shape == candidates[:, j].shape
        largest = max(largest, float((single - candidates[:, j]).abs().max()))
    return largest


def assert_one_is_untouched(policy: Any, predict: Predict, **options: Any) -> None:
    """K = 1 is the policy's own code, bit for bit, and leaves torch's generator where the policy alone leaves it."""
    results = []
    for attached in (False, True):
        if attached:
            keystone.attach(policy, k=1, **options)
        torch.manual_seed(3)
        results.append((predict(), torch.rand(3)))
        keystone.detach(policy)
    (alone, after), (one, after_one) = results
    assert torch.equal(alone, one)
    assert torch.equal(after, after_one)


def traces(root: Any) -> dict[int, tuple[type, tuple[str, ...]]]:
    """The class and the attributes of every object that a policy holds, through attributes and modules."""
    found: dict[int, tuple[type, tuple[str, ...]]] = {}
    queue = [root]
    while queue:
        current = queue.pop()
        if id(current) in found or not hasattr(current, "__dict__") or isinstance(current, Tensor):
            continue
        found[id(current)] = (type(current), tuple(sorted(vars(current))))
        queue += vars(current).values()
        queue += getattr(current, "_modules", {}).values()
    return found


def assert_no_trace(policy: Any, predict: Predict, **options: Any) -> None:
    """Attached, used and detached: every class and every attribute is as it was."""
    before = traces(policy)
    keystone.attach(policy, k=4, **options)
    assert traces(policy) != before
    predict()
    keystone.detach(policy)
    assert traces(policy) == before


def paths(policy: Any, predict: Predict, **options: Any) -> dict[str, str]:
    """The path of a round, by how the policy is attached to: with K given, with K found by itself, and in a profile."""
    found = {}
    for name, k in (("given", 4), ("auto", "auto")):
        handle = keystone.attach(policy, k=k, **options)
        try:
            predict()
            handle.k = 4  # which may have turned out to be 1
            predict()
        finally:
            keystone.detach(policy)
        found[name] = handle.path
    keystone.attach(policy, k=4, **options)
    try:
        profile = keystone.profile(policy, torch.zeros(1), k=(4,), rounds=1, call=lambda _: predict())
    finally:
        keystone.detach(policy)
    return {**found, "profile": profile.path}


def assert_kept_rounds_hold_no_candidates(policy: Any, predict: Predict, **options: Any) -> None:
    """A round that can be drawn again keeps its inputs, and neither the candidates nor what else came with them."""

    def of_candidates() -> int:
        """Live tensors with a dimension of K; selections' scores (B, K) are small."""
        gc.collect()
        # Not isinstance, which would wake lazy proxies of others.
        return sum(type(one) is Tensor and 13 in one.shape and one.ndim > 2 for one in gc.get_objects())

    handle = keystone.attach(policy, k=13, keep=4, **options)
    predict()
    after_one = of_candidates()  # a scheduler may hold its last sample
    for _ in range(2):
        predict()
    assert handle.replay(0).shape[1] == 13
    after_three = of_candidates()
    keystone.detach(policy)
    assert after_three <= after_one
