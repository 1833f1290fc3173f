"""Candidates of every size, type and degree of damage: the three code paths agree, end, and return something finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import keystone_robotics as keystone
from keystone_robotics import ActionSpace, NoValidCandidate, RuleResult
from keystone_robotics.select import engine
from keystone_robotics.select.metrics import unit_length
from keystone_robotics.select.rounds import as_candidates

RULES = list(keystone.RULES)
METRICS = ("l2", "l1", "cosine")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SPACES = (
    None, None, None, ActionSpace(dims=2), ActionSpace(steps=1, scale=1e-3), ActionSpace(gripper={0: 0.5}),
    ActionSpace(rotation={"axis-angle": 0}), ActionSpace(scale=1e20),
)  # fmt: skip
#: Cases of one call: fewer calls of the generator's own set-up.
ROUNDS = 20


def candidates(generator: np.random.Generator) -> torch.Tensor:
    """(K, T, D) or (B, K, T, D): clouds or modes, duplicates, one size or mixtures from 1e-40 to 1e38, some numbers broken."""
    batch, k, steps = generator.integers(1, 4), generator.integers(1, 13), generator.integers(1, 6)
    shape = (int(batch), int(k), int(steps), 4)
    values = generator.normal(size=shape) + 5 * generator.integers(0, 2, size=(*shape[:2], 1, 1)) * generator.integers(
        0, 2
    )
    values *= 10.0 ** generator.uniform(-40, 38) if generator.random() < 0.5 else 10.0 ** generator.uniform(-3, 3)
    if generator.random() < 0.2:
        values *= 10.0 ** generator.uniform(-30, 30, size=(*shape[:2], 1, 1))
    if generator.random() < 0.2:
        values = np.sign(values) * 2.0**49 * (1 - 2.0**-24 * generator.integers(-1, 2, size=shape))
    if generator.random() < 0.2:
        values[:, generator.integers(k)] = values[:, generator.integers(k)]
    if generator.random() < 0.3:
        values[generator.random(shape) < generator.uniform(0, 0.1)] = generator.choice([np.nan, np.inf, -np.inf, 1e300])
    tensor = torch.from_numpy(values).to(DTYPES[generator.integers(len(DTYPES))])
    return tensor[0] if generator.random() < 0.5 else tensor


def outcome(chunks: Any, **given: Any) -> Any:
    """The selection, or None where there was no candidate."""
    try:
        selection = keystone.select(chunks, **given)
    except NoValidCandidate:
        return None
    chunk = torch.as_tensor(selection.chunk)
    assert torch.isfinite(chunk).all(), "a chunk is not finite"
    measures = [selection.spread, selection.consensus, selection.median_distance, selection.dispersion]
    assert np.isfinite(np.array(measures, float)).all(), "a measure is not finite"
    return selection


def same(chunks: torch.Tensor, one: Any, other: Any, given: dict[str, Any]) -> bool:
    """Whether the same candidates are selected. Under cosine, candidates that differ by less than 1e-7 of their length are the
    same: their distance is below the rounding of 1. So are those of two modes that mirror each other: they differ in the last
    digits of unit vectors, which no two ways to compute them share.
    """
    one, other = np.atleast_1d(one), np.atleast_1d(other)
    if given["metric"] != "cosine":
        return bool((one == other).all()) or _rounds_alike(chunks, one, other, given)
    features = unit_length(as_candidates(chunks, given["space"], "cosine", 0)[0].features.astype(np.float64))
    rows = np.arange(len(one))
    first, second = features[rows, one], features[rows, other]
    equal = np.square(first - second).sum(1) < 1e-14
    finite = np.where(np.isfinite(features).all(2, keepdims=True), features, 0.0)
    totals = [np.sort(1 - np.einsum("bkt,bt->bk", finite, chosen), axis=1) for chosen in (first, second)]
    return bool((equal | (np.abs(totals[0] - totals[1]).max(1) < 1e-10)).all())


def _rounds_alike(chunks: torch.Tensor, one: Any, other: Any, given: dict[str, Any]) -> bool:
    """Whether candidates differ by less than 1e-6 of the largest distance: squares of distances have 1e-13 of it."""
    features = as_candidates(chunks, given["space"], given["metric"], 0)[0].features.astype(np.float64)
    rows = np.arange(len(one))
    usable = np.where(np.abs(features) < 5.6e14, features, np.nan)
    spread = (np.nanmax(usable, 1) - np.nanmin(usable, 1)).max(1)
    return bool((np.abs(features[rows, one] - features[rows, other]).max(1) <= 1e-6 * spread).all())


def attack_paths(generator: np.random.Generator) -> int:
    """The compiled kernel on the candidates' own type and on float64, and numpy."""
    for _ in range(ROUNDS):
        chunks = candidates(generator)
        given = {
            "rule": RULES[generator.integers(len(RULES))],
            "metric": METRICS[generator.integers(3)],
            "space": SPACES[generator.integers(len(SPACES))],
            "seed": int(generator.integers(2**31)),
        }
        compiled = outcome(chunks, **given)
        others = [outcome(chunks.double(), **given)]
        kernel, engine.compiled_kernel = engine.compiled_kernel, lambda: None  # type: ignore[assignment]
        try:
            others.append(outcome(chunks, **given))
        finally:
            engine.compiled_kernel = kernel
        for other in others:
            assert (compiled is None) == (other is None), "one path finds a candidate, another none"
            if compiled is not None:
                np.testing.assert_array_equal(compiled.labels < 0, other.labels < 0, "other candidates are dropped")
                assert same(chunks, compiled.index, other.index, given), f"another candidate is selected: {given}"
    return 3 * ROUNDS


def attack_user_rules(generator: np.random.Generator) -> int:
    """A rule that makes chunks of anything."""
    made = generator.choice([np.nan, np.inf, 1e300, 1e30, 7e4, 1.0])

    def rule(round: keystone.Round) -> RuleResult:
        chunk = round.chunks.mean(0)
        chunk[generator.random(chunk.shape) < 0.3] = made
        return RuleResult(int(generator.integers(len(round.chunks))), chunk=chunk)

    for _ in range(ROUNDS):
        outcome(candidates(generator), rule=rule)
    return ROUNDS
