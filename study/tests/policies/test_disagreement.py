"""Consensus, median distance and dispersion mean something on candidates of trained policies, under every rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics import RULES, ActionSpace
from keystone_robotics.environments import find_benchmark
from keystone_robotics.policies.load import load_agent, trained_on

EXECUTED = ActionSpace(steps=8)
#: Rules that select from the larger of two modes. ("first" takes any, "kde" looks at one step, "mean" lies between them.)
TAKE_THE_LARGER = sorted(set(RULES) - {"first", "kde", "mean"})


@pytest.fixture(scope="module", params=["metaworld-mixed", "pusht-mixed", "aloha-transfer-mixed"])
def candidates(request) -> np.ndarray:
    """(12, 16, T, D) candidates of successive rounds in two episodes."""
    agent, task = load_agent(request.param), trained_on(request.param)[0]
    env = find_benchmark(request.param.split("-")[0]).make(task)
    rounds = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for seed in range(2):
            observation, _ = env.reset(seed=seed)
            for _ in range(6):
                rounds.append(agent.plan([[observation]] * 16, [task] * 16))
                for action in keystone.select(rounds[-1], "core-mean", EXECUTED).chunk[: agent.execute]:
                    observation, *_ = env.step(action)
    env.close()
    return np.stack(rounds)


def split(candidates: np.ndarray, away: int) -> np.ndarray:
    """The same candidates, some of each round moved by six median distances."""
    moved = candidates.astype(np.float64)
    apart = keystone.select(candidates, "medoid", EXECUTED).median_distance
    rng = np.random.default_rng(0)
    for chunks, distance in zip(moved, apart, strict=True):
        direction = rng.normal(size=chunks.shape[-1])
        direction /= np.linalg.norm(direction) * np.sqrt(8)  # of length 1 over the eight steps that count
        chunks[rng.permutation(len(chunks))[:away]] += 6 * distance * direction
    return moved


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_measure_varies_and_follows_bimodality(candidates, rule):
    one, some, half = (
        keystone.select(x, rule, EXECUTED) for x in (candidates, split(candidates, 5), split(candidates, 8))
    )
    for measure in ("consensus", "median_distance", "dispersion"):
        assert len(set(getattr(one, measure).tolist())) > 1, measure
    assert half.consensus.mean() == pytest.approx(0.5, abs=0.06)
    assert some.consensus.mean() > half.consensus.mean() or rule == "first"
    assert one.consensus.mean() > max(half.consensus.mean(), 0 if one.clustered.all() else some.consensus.mean())
    assert (one.dispersion < half.dispersion).all()
    assert one.dispersion.mean() < some.dispersion.mean() < half.dispersion.mean()
    assert (one.median_distance < half.median_distance).all()


@pytest.mark.parametrize("rule", TAKE_THE_LARGER)
def test_the_consensus_of_two_modes_is_the_share_of_the_larger(candidates, rule):
    assert keystone.select(split(candidates, 5), rule, EXECUTED).consensus.mean() == pytest.approx(11 / 16, abs=0.09)


@pytest.mark.parametrize("rule", ["keystone", "core-mean", "first"])
def test_forms_of_the_input_agree(candidates, rule):
    batch = keystone.select(candidates, rule, EXECUTED)
    same = keystone.select(torch.from_numpy(candidates), rule, EXECUTED)
    for measure in ("consensus", "median_distance", "dispersion"):
        np.testing.assert_array_equal(getattr(batch, measure), getattr(same, measure))
        alone = [getattr(keystone.select(one, rule, EXECUTED), measure) for one in candidates]
        assert getattr(batch, measure).tolist() == alone
