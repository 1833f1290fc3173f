"""Meta-World itself: initial states that follow from the seed alone, a goal in sight, tasks that can be done."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_robotics.environments import find_benchmark
from keystone_robotics.environments.metaworld import STATE, _classes
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.rollout import hash_state

os.environ.setdefault("MUJOCO_GL", "egl")

BENCHMARK = find_benchmark("metaworld")
TASKS = ("reach-v3", "push-v3", "drawer-open-v3", "basketball-v3")


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


actions = st.lists(st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4), max_size=8)


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=12)
@given(seed=st.integers(0, 2**30), before=st.integers(0, 2**30), history=actions, after=actions)
def test_a_seed_leads_to_the_same_episode_whatever_was_done_before(envs, task, seed, before, history, after):
    env = envs[task]
    expected = walk(env, seed, after)
    walk(env, before, history)
    for mine, theirs in zip(walk(env, seed, after), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("task", TASKS[:2])
def test_a_new_environment_begins_like_an_old_one(envs, task):
    walk(envs[task], 5, [[1, 1, 1, 1]] * 3)
    new = BENCHMARK.make(task)
    for mine, theirs in zip(walk(new, 7, [[0.5, 0, 0, 1]] * 3), walk(envs[task], 7, [[0.5, 0, 0, 1]] * 3), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    new.close()


@pytest.mark.parametrize("task", TASKS)
def test_seeds_differ_and_the_goal_is_in_sight(envs, task):
    hashes = set()
    for seed in range(8):
        observation, info = envs[task].reset(seed=seed)
        state = observation["environment_state"]
        assert np.abs(state[STATE - 3 : STATE]).max() > 0.01
        assert envs[task].observation_space.contains(observation)
        np.testing.assert_array_equal(observation["agent_pos"], state[:4])
        hashes.add(hash_state(info["initial_state"]))
    assert len(hashes) == 8


def test_every_task_has_a_number(envs):
    tasks = BENCHMARK.tasks()
    assert len(tasks) == 50
    assert list(tasks) == list(_classes())  # read from the source, and imported
    for task in TASKS:
        one_hot = envs[task].reset(seed=0)[0]["environment_state"][STATE:]
        assert one_hot.sum() == 1
        assert tasks[int(one_hot.argmax())] == task


@pytest.mark.parametrize("task", ["reach-v3", "drawer-open-v3"])
def test_the_scripted_expert_succeeds(envs, task):
    from metaworld.policies import ENV_POLICY_MAP

    expert, env = ENV_POLICY_MAP[task](), envs[task]
    observation, info = env.reset(seed=3)
    assert not info["success"]
    for _ in range(BENCHMARK.max_steps(task)):
        action = np.clip(expert.get_action(observation["environment_state"][:STATE].astype(np.float64)), -1, 1)
        observation, _, terminated, _, info = env.step(action.astype(np.float32))
        if terminated:
            break
    assert info["success"]


def test_an_unknown_task():
    with pytest.raises(KeystoneError, match="did you mean 'reach-v3'"):
        BENCHMARK.make("reach-v4")


def test_an_image():
    env = BENCHMARK.make("reach-v3", render=True)
    env.reset(seed=0)
    image = env.render()
    assert (image.shape, image.dtype) == ((256, 256, 3), np.uint8)
    assert image.std() > 10
    env.close()


def test_graphics_that_are_not_there():
    code = "from keystone_robotics.environments import find_benchmark; find_benchmark('metaworld').make('reach-v3')"
    environ = {**os.environ, "MUJOCO_GL": "telepathy"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=False)
    assert "KeystoneError: MuJoCo cannot render" in result.stderr
    assert "MUJOCO_GL is telepathy" in result.stderr
