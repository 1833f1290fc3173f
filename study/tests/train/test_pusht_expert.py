"""The PushT expert on the real physics: it succeeds, repeats itself from its seed, and knows more than one way."""

import itertools
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_robotics.environments.pusht import TABLE, PushTEnv, corners_at
from keystone_study.train import pusht_expert
from keystone_study.train.pusht_expert import ExpertSettings, PushTExpert

WALL = 10.0
"""Pixels from the table's edge within which a T may touch the wall, which is 7 thick."""

places = st.floats(20, 492)
poses = st.tuples(st.floats(130, 380), st.floats(130, 380), st.floats(-np.pi, np.pi)).map(np.array)


@pytest.fixture(scope="module")
def env():
    return PushTEnv()


def demonstrate(env, seed, **changes):
    env.reset(seed=seed)
    return PushTExpert(np.random.default_rng(seed), ExpertSettings(**changes)).demonstrate(env, max_steps=300)


@pytest.fixture(scope="module")
def demonstrations(env):
    return [demonstrate(env, seed) for seed in range(1000, 1006)]


def test_succeeds_nearly_always(demonstrations):
    assert np.mean([one.success for one in demonstrations]) >= 0.8


def test_demonstrations_replay(env, demonstrations):
    for seed, one in zip((1000, 1001), demonstrations):
        observation, info = env.reset(seed=seed)
        for t, action in enumerate(one.actions):
            assert not info["success"]
            np.testing.assert_array_equal(one.agent_pos[t], observation["agent_pos"])
            np.testing.assert_array_equal(one.environment_state[t], observation["environment_state"])
            observation, _, _, _, info = env.step(action)
        assert info["success"] == one.success


def test_shapes_and_types(demonstrations):
    for one in demonstrations:
        length = len(one.actions)
        assert 0 < length <= 300
        assert (one.agent_pos.shape, one.environment_state.shape, one.actions.shape) == (
            (length, 2),
            (length, 18),
            (length, 2),
        )
        assert {array.dtype for array in one[:3]} == {np.dtype(np.float32)}
        assert isinstance(one.success, bool)
        assert ((one.actions >= 0) & (one.actions <= TABLE)).all()


def test_reproducible_from_the_seed_whatever_was_done_before(env, demonstrations):
    again = demonstrate(PushTEnv(), 1002)
    np.testing.assert_array_equal(again.actions, demonstrations[2].actions)
    np.testing.assert_array_equal(again.environment_state, demonstrations[2].environment_state)


def test_other_seeds_do_something_else(env, demonstrations):
    env.reset(seed=1002)
    other = PushTExpert(np.random.default_rng(5)).demonstrate(env, 60)
    length = min(len(other.actions), len(demonstrations[2].actions))
    assert np.abs(other.actions[:length] - demonstrations[2].actions[:length]).max() > 30


def test_stops_after_max_steps(env):
    env.reset(seed=1000)
    one = PushTExpert(np.random.default_rng(0)).demonstrate(env, max_steps=7)
    assert len(one.actions) == 7
    assert not one.success


def test_noise_is_as_large_as_asked_for(env):
    env.reset(seed=1003)
    calm = PushTExpert(np.random.default_rng(0), ExpertSettings(temperature=0.0, longer_way=0.0)).demonstrate(env, 6)
    noise = []
    for seed in range(8):
        env.reset(seed=1003)
        unsteady = ExpertSettings(temperature=0.0, longer_way=0.0, action_noise=4.0)
        noise.append(PushTExpert(np.random.default_rng(seed), unsteady).demonstrate(env, 6).actions - calm.actions)
    assert np.std(noise) == pytest.approx(4.0, rel=0.2)


class OftenAsked(PushTExpert):
    """Simulates the pushes for a state once, not for each generator: they do not depend on it."""

    known: ClassVar[dict] = {}

    def _pushes(self, finger, pose):
        key = (*finger, *pose)
        if key not in self.known:
            self.known[key] = super()._pushes(finger, pose)
        return self.known[key]


def modes(env, state_seed, chosen, count=60):
    """Shares of (edge pushed, way round) among the plans of different generators for one initial state."""
    env.reset(seed=state_seed)
    state = env.physics_state()
    plans = [OftenAsked(np.random.default_rng(seed), chosen).plan(state[:2], state[4:7]) for seed in range(count)]
    counts = Counter((push.edge, route.turn) for push, route in plans)
    return {mode: number / count for mode, number in counts.items()}


def common(shares):
    return [mode for mode, share in shares.items() if share >= 0.15]


def test_one_state_two_edges_to_push(env):
    shares = modes(env, 7, ExpertSettings())
    assert len({edge for edge, _ in common(shares)}) >= 2, shares


def test_one_edge_two_ways_round(env):
    shares = modes(env, 13, ExpertSettings())
    ways = {edge: {turn for other, turn in common(shares) if other == edge} for edge, _ in common(shares)}
    assert {1, -1} in ways.values(), shares


def test_most_states_have_more_than_one_way(env):
    several = [len(common(modes(env, seed, ExpertSettings()))) >= 2 for seed in range(6)]
    assert np.mean(several) >= 0.5


def test_without_temperature_and_detours_there_is_one_way(env):
    assert len(modes(env, 13, ExpertSettings(temperature=0.0, longer_way=0.0))) == 1


def test_the_longer_way_is_as_frequent_as_asked_for(env):
    short = modes(env, 13, ExpertSettings(temperature=0.0, longer_way=0.0))
    ((edge, turn),) = short
    shares = modes(env, 13, ExpertSettings(temperature=0.0, longer_way=0.3), count=200)
    assert shares[edge, -turn] == pytest.approx(0.3, abs=0.1)
    assert len(shares) == 2


@settings(max_examples=60)
@given(pose=poses, x=places, y=places, index=st.integers(0, len(pusht_expert.STARTS) - 1))
def test_open_routes_keep_clear_of_the_t_and_arrive(pose, x, y, index):
    finger = np.array([x, y])
    goal = pusht_expert.rotated(pusht_expert.STARTS[index], pose[2]) + pose[:2]
    for route in pusht_expert.routes_to(goal, finger, pose):
        if not route.is_open or (np.abs(goal - TABLE / 2) > TABLE / 2 - pusht_expert.BORDER).any():
            continue
        np.testing.assert_allclose(route.waypoints[-1], goal, atol=1e-6)
        touching = (
            pusht_expert.distance_to_t(pusht_expert.rotated(finger - pose[:2], -pose[2])) < pusht_expert.CLEARANCE
        )
        corners = route.waypoints if touching else [finger, *route.waypoints]
        for begin, end in itertools.pairwise(corners):
            line = np.linspace(begin, end, 200)
            distance = pusht_expert.distance_to_t(pusht_expert.rotated(line - pose[:2], -pose[2]))
            assert distance.min() > pusht_expert.FINGER_RADIUS


@settings(max_examples=15)
@given(pose=poses, index=st.integers(0, len(pusht_expert.STARTS) - 1))
def test_the_private_physics_agrees_with_the_environment(env, pose, index):
    start = pusht_expert.rotated(pusht_expert.STARTS[index], pose[2]) + pose[:2]
    direction = pusht_expert.rotated(pusht_expert.DIRECTIONS[index], pose[2])
    advance = 8.0 * np.arange(1, 7)
    env.reset(seed=0)
    inner = env._simulator
    inner.agent.position, inner.agent.velocity = tuple(start), (0, 0)
    inner.block.angle = pose[2]
    inner.block.position = tuple(pose[:2])
    inner.space.reindex_shapes_for_body(inner.block)
    others = np.tile(start, (3, 1))
    predicted = pusht_expert.simulate_pushes(
        pose, others, np.tile(direction, (3, 1)), pusht_expert.finger_travel(advance)
    )
    for step, distance in enumerate(advance):
        inner.step(start + distance * direction)
        pose = env.physics_state()[4:7]
        corners = corners_at(np.stack([pose, *predicted[step]]))
        if not ((corners > WALL) & (corners < TABLE - WALL)).all():
            break  # whether a T at the wall jams or slips is decided by rounding
        np.testing.assert_allclose(predicted[step, 0], predicted[step, 2], atol=1e-6)
        assert np.linalg.norm(pose[:2] - predicted[step, 0, :2]) < 0.5
        assert abs(pose[2] - predicted[step, 0, 2]) < 0.01
