"""Windows: every step is there once, chunks are what followed, and what lies past the end is at rest."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_study.train.demonstration import Demonstration
from keystone_study.train.windows import cut_windows, statistics


def demonstration(length: int, seed: int) -> Demonstration:
    random = np.random.default_rng(seed)
    draw = lambda width: random.normal(size=(length, width)).astype(np.float32)  # noqa: E731
    return Demonstration(draw(2), draw(5), draw(3), True)


lengths = st.lists(st.integers(1, 25), min_size=1, max_size=4)


@given(lengths, st.integers(1, 20), st.sampled_from([(), (0,), (0, 1)]), st.sampled_from([(), (2,), (0, 2)]))
def test_windows(sizes: list[int], horizon: int, relative: tuple[int, ...], motion: tuple[int, ...]):
    motion = tuple(dim for dim in motion if dim not in relative)
    demos = [demonstration(size, seed) for seed, size in enumerate(sizes)]
    windows = cut_windows(demos, horizon, motion, relative)
    assert len(windows.chunks) == len(windows.agent_pos) == len(windows.environment_state) == sum(sizes)
    assert windows.chunks.dtype == np.float32
    row = 0
    for one in demos:
        for step in range(len(one.actions)):
            np.testing.assert_array_equal(windows.environment_state[row], one.environment_state[step])
            np.testing.assert_array_equal(windows.agent_pos[row], one.agent_pos[step])
            for ahead in range(horizon):
                past = step + ahead >= len(one.actions)
                expected = one.actions[min(step + ahead, len(one.actions) - 1)].copy()
                if past:
                    expected[list(motion)] = 0
                for dim in relative:
                    expected[dim] -= one.agent_pos[step, dim]
                np.testing.assert_array_equal(windows.chunks[row, ahead], expected)
            row += 1


def test_cutting_leaves_the_demonstrations_alone():
    one = demonstration(6, 0)
    before = [array.copy() for array in one[:3]]
    cut_windows([one], 4, motion=(0,), relative=(1,))
    for array, copy in zip(one[:3], before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_statistics_are_those_of_the_values_and_never_too_small():
    values = np.random.default_rng(0).normal([3.0, -1.0, 7.0], [2.0, 0.5, 0.0], size=(50, 8, 3))
    found = statistics(values, 0.01)
    np.testing.assert_allclose(found.mean, values.mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(found.std[:2], values.std((0, 1))[:2], rtol=1e-5)
    np.testing.assert_allclose(found.min[:2], values.min((0, 1))[:2], rtol=1e-5)
    assert found.std[2] == pytest.approx(0.01)
    assert found.max[2] - found.min[2] == pytest.approx(0.01, rel=1e-3)
    assert all(array.dtype == np.float32 for array in found)
