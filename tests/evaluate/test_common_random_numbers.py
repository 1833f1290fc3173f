"""Arms share initial states and noise, in Meta-World itself."""

import numpy as np
import pytest

from keystone_robotics.evaluate.config import config_from
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.records import Store
from toy import table

TASKS = ("reach-v3", "button-press-topdown-v3")
EPISODES, REPEATS = 3, 2
ARMS = ["first", "keystone:k=16", "first:temperature=0.6", "mean:k=4"]


@pytest.fixture(scope="module")
def settings(metaworld_policy):
    def make(**given):
        base = {
            "policy": str(metaworld_policy), "env": "metaworld", "tasks": list(TASKS), "episodes": EPISODES,
            "repeats": REPEATS, "arms": ARMS, "shard": 2, "max_steps": 6, "keep_rounds": True,
        }  # fmt: skip
        return config_from({**base, **given})

    return make


@pytest.fixture(scope="module")
def run(settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    evaluate(settings(), folder)
    return folder


def rounds(run, arm, task, repeat, episode):
    with Store(run) as store:
        return store.rounds((arm, task, repeat, episode))


KEYS = [(task, repeat, episode) for task in TASKS for repeat in range(REPEATS) for episode in range(EPISODES)]


@pytest.mark.parametrize("key", KEYS)
def test_the_noise_of_one_is_candidate_zero_of_many(run, key):
    first, many = rounds(run, "first", *key)[0], rounds(run, "keystone:k=16", *key)[0]
    assert (first.candidates.shape, many.candidates.shape) == ((1, 6, 4), (16, 6, 4))
    np.testing.assert_allclose(many.candidates[0], first.candidates[0], atol=1e-5)
    assert np.abs(many.candidates[1:] - first.candidates[0]).max((1, 2)).min() > 0.1
    np.testing.assert_allclose(rounds(run, "mean:k=4", *key)[0].candidates, many.candidates[:4], atol=1e-5)


def test_temperature_scales_the_same_noise(run):
    for key in KEYS:
        warm, cool = (rounds(run, arm, *key)[0].candidates for arm in ("first", "first:temperature=0.6"))
        assert 1e-3 < np.abs(warm - cool).max() < np.abs(warm).max()


def test_rounds_and_repeats_have_noise_of_their_own(run):
    for task in TASKS:
        chunks = [
            rounds(run, "first", task, repeat, 0)[number].candidates for repeat in range(2) for number in range(2)
        ]
        for i, one in enumerate(chunks):
            for other in chunks[i + 1 :]:
                assert np.abs(one - other).max() > 0.1


def test_arms_and_repeats_share_initial_states_and_episodes_do_not(run):
    rows = table(run)
    assert len(rows) == len(ARMS) * len(KEYS)
    states = {}
    for row in rows:
        states.setdefault((row.task, row.episode), set()).add((row.initial_state, row.initial_seed))
        assert row.error is None
    assert all(len(found) == 1 for found in states.values())
    assert len({next(iter(found))[0] for found in states.values()}) == len(TASKS) * EPISODES
    seeds = {(row.task, row.repeat, row.episode): set() for row in rows}
    for row in rows:
        seeds[row.task, row.repeat, row.episode].add(row.noise_seed)
    assert all(len(found) == 1 for found in seeds.values())
    assert len({next(iter(found)) for found in seeds.values()}) == len(KEYS)


def test_what_is_chosen_is_executed(run):
    for arm in ARMS:
        for kept in rounds(run, arm, TASKS[0], 0, 0):
            chunk = kept.candidates.mean(0) if arm.startswith("mean") else kept.candidates[kept.index]
            np.testing.assert_allclose(kept.actions, np.clip(chunk[: len(kept.actions)], -1, 1), atol=1e-5)
            assert kept.synthesised == arm.startswith("mean")


def test_what_is_added_later_is_what_would_have_been(settings, run, tmp_path):
    steps = [
        {"arms": ARMS[1:2], "episodes": 2, "repeats": 1, "tasks": [TASKS[1]]},
        {"arms": ARMS[1:2], "episodes": 2},
        {"arms": ARMS[::-1], "episodes": 2},
        {},
    ]
    for given in steps:
        report = evaluate(settings(**given), tmp_path / "run")
        assert report.new > 0
    assert table(tmp_path / "run") == table(run)
    for arm in ARMS:
        for one, other in zip(
            rounds(tmp_path / "run", arm, TASKS[0], 1, 1), rounds(run, arm, TASKS[0], 1, 1), strict=True
        ):
            np.testing.assert_array_equal(one.candidates, other.candidates)
            np.testing.assert_array_equal(one.actions, other.actions)
    assert evaluate(settings(), tmp_path / "run").new == 0
