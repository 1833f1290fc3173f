"""The imperfect demonstrator has the errors of its regime, and no others."""

import numpy as np
import pytest

from keystone_study.train.imperfection import REGIMES, ImperfectDemonstrator, Imperfection


def demonstrator(seed: int = 0, **settings: object) -> ImperfectDemonstrator:
    return ImperfectDemonstrator(Imperfection(**settings), np.random.default_rng(seed), motion=3)


def test_without_imperfection_the_expert_is_followed():
    steady = demonstrator()
    for action in ([0.5, -1.0, 0.25, 1.0], [7.0, 0.0, -7.0, -3.0]):
        assert steady.aiming_error() == 0.0
        np.testing.assert_array_equal(steady.move(np.array(action)), np.clip(action, -1, 1).astype(np.float32))


def test_noise_has_the_stated_size_and_correlation_and_spares_the_gripper():
    unsteady = demonstrator(noise=0.2, correlation=0.8)
    moves = np.array([unsteady.move(np.array([0.0, 0.0, 0.0, 0.7])) for _ in range(8000)])
    np.testing.assert_allclose(moves[100:, :3].std(0), 0.2, rtol=0.08)
    assert np.corrcoef(moves[100:-1, 0], moves[101:, 0])[0, 1] == pytest.approx(0.8, abs=0.04)
    np.testing.assert_array_equal(moves[:, 3], np.float32(0.7))


def test_speed_is_drawn_once_an_episode_from_its_range():
    speeds = []
    for seed in range(200):
        slow = demonstrator(seed, speed=(0.6, 0.9))
        moves = {float(slow.move(np.array([1.0, 0, 0, 0]))[0]) for _ in range(5)}
        assert len(moves) == 1
        speeds += moves
    assert 0.6 <= min(speeds) < 0.63
    assert 0.87 < max(speeds) <= 0.9


def test_aim_is_held_for_a_segment():
    astray = demonstrator(aim=0.04, aim_spread=0.006, aim_share=0.35, hold=30)
    segments = np.array([astray.aiming_error() for _ in range(30 * 400)]).reshape(400, 30)
    assert (segments == segments[:, :1]).all()
    misjudged = segments[segments[:, 0] != 0, 0]
    assert len(misjudged) / 400 == pytest.approx(0.35, abs=0.07)
    assert misjudged.mean() == pytest.approx(0.04, abs=0.002)


def test_hesitation_stops_the_motion_for_a_few_steps_and_keeps_the_gripper():
    hesitant = demonstrator(pause=0.02, pause_steps=(3, 3))
    moves = np.array([hesitant.move(np.array([1.0, 1, 1, 1])) for _ in range(3000)])
    still = moves[:, 0] == 0
    assert (moves[:, 3] == 1).all()
    starts = np.flatnonzero(still & ~np.r_[False, still[:-1]])
    assert 30 < len(starts) < 100
    assert all(still[start : start + 3].all() for start in starts if start + 3 <= len(still))


@pytest.mark.parametrize("name", REGIMES)
def test_regimes_execute_within_the_robots_range(name: str):
    one = ImperfectDemonstrator(REGIMES[name], np.random.default_rng(1), motion=3)
    moves = np.array([one.move(np.array([3.0, -3, 0, 2])) for _ in range(500)])
    assert moves.dtype == np.float32
    assert np.abs(moves).max() <= 1
