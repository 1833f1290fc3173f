"""Executing the candidates that were not chosen."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.branch import Brancher
from keystone_robotics.evaluate.config import config_from
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.records import Store

ARMS = ["first", "keystone:k=4,temperature=0.8,execute=6"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = config_from(
        {"policy": "metaworld-mixed", "env": "metaworld", "tasks": ["push-v3"], "arms": ARMS, "episodes": 2,
         "max_steps": 40, "keep_rounds": True}
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("run")
    evaluate(settings, folder)
    return settings, folder


def rounds_of(folder: Path, arm: str, episode: int):
    with Store(folder) as store:
        return store.rounds((arm, "push-v3", 0, episode))


def test_the_branch_of_the_chosen_candidate_goes_where_the_episode_went(run):
    """In the last round nothing follows, so that the chosen branch must end as the episode did."""
    settings, folder = run
    arm = settings.arms[1]
    rounds = rounds_of(folder, str(arm), 0)
    with Store(folder) as store:
        row = next(row for row in store.episodes() if row.arm == str(arm) and row.episode == 0)
    with Brancher(settings, arm, "push-v3") as brancher:
        branches = brancher.branch(0, 0, rounds, len(rounds) - 1)
        again = brancher.branch(0, 0, rounds, len(rounds) - 1)
    assert len(branches.success) == len(branches.paths) == 4
    chosen = rounds[-1].index
    assert branches.steps[chosen] == row.steps
    assert branches.success[chosen] == row.success
    assert len(branches.paths[chosen]) == len(rounds[-1].actions) + 1
    ends = np.array([path[-1] for path in branches.paths])
    assert len(np.unique(ends.round(6), axis=0)) == 4  # every candidate goes its own way
    np.testing.assert_array_equal(again.steps, branches.steps)
    np.testing.assert_array_equal(again.paths[1], branches.paths[1])


def test_all_branches_begin_where_the_episode_was(run):
    settings, folder = run
    rounds = rounds_of(folder, ARMS[1], 1)
    with Brancher(settings, settings.arms[1], "push-v3") as brancher:
        first, second = (brancher.branch(0, 1, rounds, at) for at in (0, 1))
    assert len({tuple(path[0]) for path in first.paths}) == len({tuple(path[0]) for path in second.paths}) == 1
    np.testing.assert_allclose(first.paths[rounds[0].index][-1], second.paths[0][0], atol=1e-6)


def test_candidates_that_cannot_be_drawn_again_are_not_passed_off_as_those(run):
    settings, folder = run
    rounds = rounds_of(folder, ARMS[1], 0)
    refused = pytest.raises(KeystoneError, match="round 0 cannot be branched")
    with Brancher(settings, settings.arms[0], "push-v3") as brancher, refused:  # another temperature
        brancher.branch(0, 0, rounds, 0)


def test_a_candidate_that_is_not_finite_never_succeeds(run):
    settings, folder = run
    rounds = rounds_of(folder, ARMS[1], 0)
    labels = rounds[0].labels.copy()
    labels[2] = -1
    broken = [dataclasses.replace(rounds[0], labels=labels), *rounds[1:]]
    with Brancher(settings, settings.arms[1], "push-v3") as brancher:
        assert not brancher.branch(0, 0, broken, 0).success[2]
