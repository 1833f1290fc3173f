"""ALOHA itself: initial states that follow from the seed alone, a success that has to be held, divergence as failure."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_robotics.environments import find_benchmark
from keystone_robotics.environments.aloha import FINGERS, HOLD, JOINTS
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.rollout import hash_state

os.environ.setdefault("MUJOCO_GL", "egl")

BENCHMARK = find_benchmark("aloha")


@pytest.fixture(scope="module")
def env():
    made = BENCHMARK.make("transfer-cube")
    yield made
    made.close()


def walk(env, seed, changes):
    observation, info = env.reset(seed=seed)
    states = [info["initial_state"], observation["environment_state"]]
    start = observation["agent_pos"]
    return states + [env.step(start + np.float32(change))[0]["environment_state"] for change in changes]


changes = st.lists(st.floats(-0.25, 0.25, width=32), max_size=6)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**30), before=st.integers(0, 2**30), history=changes, after=changes)
def test_a_seed_leads_to_the_same_episode_whatever_was_done_before(env, seed, before, history, after):
    expected = walk(env, seed, after)
    walk(env, before, history)
    for mine, theirs in zip(walk(env, seed, after), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_new_environment_begins_like_an_old_one_and_both_may_be_used_in_turns(env):
    new = BENCHMARK.make("transfer-cube")
    new.reset(seed=3)
    expected = walk(env, 7, [0.1, 0.1])
    for mine, theirs in zip(walk(new, 7, [0.1, 0.1]), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    new.close()


def test_seeds_differ_and_observations_say_where_the_cube_is(env):
    hashes = set()
    for seed in range(6):
        observation, info = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        state = observation["environment_state"]
        np.testing.assert_allclose(state[28:31], env.objects()[0, :3], atol=1e-6)
        np.testing.assert_allclose(state[35:41] + state[41:47], np.tile(state[28:31], 2), atol=1e-6)
        hashes.add(hash_state(info["initial_state"]))
    assert len(hashes) == 6


def test_success_needs_the_left_gripper_to_hold_the_cube_alone_for_a_while(env, monkeypatch):
    observation, _ = env.reset(seed=0)
    touching = set(FINGERS["left"])
    monkeypatch.setattr(env, "touches", lambda name: touching)

    def steps(count):
        return [env.step(observation["agent_pos"])[4]["success"] for _ in range(count)]

    assert not any(steps(HOLD - 1))
    touching.add("table")
    assert not any(steps(2))
    touching.remove("table")
    touching.add("vx300s_right/10_left_gripper_finger")
    assert not any(steps(HOLD))
    touching.remove("vx300s_right/10_left_gripper_finger")
    assert steps(HOLD) == [False] * (HOLD - 1) + [True]


def test_what_touches_the_cube_is_known_by_name(env):
    observation, _ = env.reset(seed=0)
    for _ in range(20):
        env.step(observation["agent_pos"])
    assert env.touches("red_box") == {"table"}


def test_diverging_physics_is_a_failure_and_the_next_episode_is_not_affected(env):
    expected = walk(env, 1, [0.1])
    observation, _ = env.reset(seed=0)
    env.physics.data.qvel[:] = np.nan
    seen, _, terminated, truncated, info = env.step(observation["agent_pos"])
    assert (terminated, truncated, info["success"]) == (False, True, False)
    assert np.isfinite(seen["environment_state"]).all()
    for mine, theirs in zip(walk(env, 1, [0.1]), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_an_insertion_begins_as_its_seed_says_and_says_where_peg_and_socket_are():
    env = BENCHMARK.make("insertion")
    expected = walk(env, 7, [0.1, 0.1])
    walk(env, 3, [0.2])
    for mine, theirs in zip(walk(env, 7, [0.1, 0.1]), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    state = observation["environment_state"]
    peg, socket = env.objects()[:, :3]
    np.testing.assert_allclose(state[42:48] + state[48:], np.concatenate([socket, peg]), atol=1e-6)
    env.close()


def test_a_peg_is_inserted_if_it_is_inside_and_both_are_held_for_a_while(monkeypatch):
    env = BENCHMARK.make("insertion")
    observation, _ = env.reset(seed=0)
    for between, depth in (
        ([0.104, 0, 0], 0.016),
        ([-0.104, 0.005, 0], 0.016),
        ([0.104, 0.03, 0], 0.0),
        ([0.2, 0, 0], -0.08),
    ):
        env.physics.data.qpos[16:19] = env.physics.data.qpos[23:26] + between
        env.physics.forward()
        assert env.depth() == pytest.approx(depth, abs=1e-6)
    held = {"red_peg": FINGERS["right"], "socket-": FINGERS["left"]}

    def succeeds(touched, *depths):
        monkeypatch.setattr(env, "touches", touched.__getitem__)
        found = []
        for depth in depths:
            monkeypatch.setattr(env, "depth", lambda depth=depth: depth)
            found.append(env.step(observation["agent_pos"])[4]["success"])
        return found

    for case in (
        {"red_peg": held["red_peg"] | {"table"}},
        {"socket-": held["socket-"] | {"table"}},
        {"socket-": set()},
        {"red_peg": FINGERS["left"]},
    ):
        assert not any(succeeds(held, *[0.02] * (HOLD - 1)))
        assert succeeds(held | case, 0.02) == [False]
    assert not any(succeeds(held, *[0.02] * (HOLD - 1), 0.01))
    assert succeeds(held, *[0.02] * HOLD) == [False] * (HOLD - 1) + [True]
    env.close()


@pytest.mark.parametrize("action", [np.full(JOINTS, np.nan), np.zeros(7)])
def test_an_action_that_is_none_is_refused(env, action):
    env.reset(seed=0)
    with pytest.raises(ValueError, match="14 finite numbers"):
        env.step(action)


def test_an_unknown_task_is_refused_with_the_nearest_one():
    with pytest.raises(KeystoneError, match="did you mean 'transfer-cube'"):
        BENCHMARK.make("transfer_cube")
