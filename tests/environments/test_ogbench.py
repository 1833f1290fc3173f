"""OGBench itself: initial states that follow from the seed alone, a goal in sight."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_robotics.environments import find_benchmark
from keystone_robotics.environments.ogbench import SCENES
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.rollout import hash_state

os.environ.setdefault("MUJOCO_GL", "egl")

BENCHMARK = find_benchmark("ogbench")
TASKS = tuple(f"{scene}-task2" for scene in SCENES)


@pytest.fixture(scope="module")
def envs():
    made = {task: BENCHMARK.make(task) for task in TASKS}
    yield made
    for env in made.values():
        env.close()


def walk(env, seed, actions):
    observation, info = env.reset(seed=seed)
    states = [info["initial_state"], observation["environment_state"]]
    states += [env.step(np.asarray(action, np.float32))[0]["environment_state"] for action in actions]
    return states


actions = st.lists(st.lists(st.floats(-1, 1, width=32), min_size=5, max_size=5), max_size=6)


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**30), before=st.integers(0, 2**30), history=actions, after=actions)
def test_a_seed_leads_to_the_same_episode_whatever_was_done_before(envs, task, seed, before, history, after):
    env = envs[task]
    expected = walk(env, seed, after)
    walk(env, before, history)
    for mine, theirs in zip(walk(env, seed, after), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("task", TASKS)
def test_a_new_environment_begins_like_an_old_one(envs, task):
    walk(envs[task], 5, [[1, 1, 1, 1, 1]] * 3)
    new = BENCHMARK.make(task)
    moves = [[0.5, 0, -1, 0.5, 1]] * 5
    for mine, theirs in zip(walk(new, 7, moves), walk(envs[task], 7, moves), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    new.close()


@pytest.mark.parametrize("task", TASKS)
def test_seeds_and_tasks_differ_and_the_goal_is_in_sight(envs, task):
    env = envs[task]
    hashes = set()
    for seed in range(3):
        observation, info = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        np.testing.assert_array_equal(observation["environment_state"][-len(env.goal) :], env.goal)
        hashes.add(hash_state(info["initial_state"]))
    assert len(hashes) == 3
    other = BENCHMARK.make(task.replace("task2", "task4"))
    assert hash_state(other.reset(seed=0)[1]["initial_state"]) not in hashes
    assert not np.array_equal(other.goal, env.goal)
    other.close()


def test_the_hand_moves_and_turns_as_told(envs):
    env = envs["cube-single-task2"]
    start, _ = env.reset(seed=0)
    assert not env.sim._success
    for _ in range(4):
        moved, _, _, _, info = env.step(np.array([0, 0, 0, 1, 1], np.float32))
    change = moved["agent_pos"] - start["agent_pos"]
    assert np.abs(change[:3]).max() < 0.02
    assert np.abs(np.angle(np.exp(1j * change[3]))) > 0.15
    assert change[4] > 0.2
    assert not info["success"]


def test_a_cube_at_its_goal_is_success(envs):
    env = envs["cube-single-task2"]
    env.reset(seed=0)
    env.sim.data.joint("object_joint_0").qpos[:3] = env.sim.cur_task_info["goal_xyzs"][0]
    _, _, terminated, _, info = env.step(np.zeros(5, np.float32))
    assert terminated
    assert info["success"]


def test_an_unknown_task_is_refused_with_the_nearest_one():
    with pytest.raises(KeystoneError, match="did you mean 'cube-single-task5'"):
        BENCHMARK.make("cube-single-task9")
