"""OGBench's oracles in its tasks: they succeed with errors, and depend on nothing but the attempt."""

import numpy as np
import pytest

from keystone_study.train.demonstration import Demonstration
from keystone_study.train.experts import find_expert

OGBENCH = find_expert("ogbench")


def same(one: Demonstration, other: Demonstration) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_demonstration_depends_on_nothing_but_its_name():
    first = OGBENCH.demonstrate("cube-single-task1", "mixed", 0, 1)
    np.random.seed(5)
    OGBENCH.demonstrate("cube-single-task3", "noisy", 0, 0)
    assert same(first, OGBENCH.demonstrate("cube-single-task1", "mixed", 0, 1))
    assert not same(first, OGBENCH.demonstrate("cube-single-task1", "mixed", 1, 1))


@pytest.mark.parametrize("task", ["cube-double-task4", "cube-double-task5", "puzzle-3x3-task3"])
def test_the_clean_expert_succeeds(task: str):
    """One cube: below. Among these the two cubes that are in each other's place, and those to be stacked."""
    demonstration = OGBENCH.demonstrate(task, "clean", 0, 0)
    assert demonstration.success
    assert len(demonstration.actions) < OGBENCH.benchmark.max_steps(task)
    assert np.abs(demonstration.actions).max() <= 1


def test_misjudging_takes_longer_and_succeeds_all_the_same():
    lengths = {}
    for regime in ("clean", "mixed"):
        made = [OGBENCH.demonstrate("cube-single-task2", regime, 0, index) for index in range(3)]
        assert all(one.success for one in made)
        lengths[regime] = np.mean([len(one.actions) for one in made])
    assert lengths["mixed"] > 1.1 * lengths["clean"]
