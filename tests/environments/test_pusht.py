"""PushT on the real physics: pure resets, honest success, pictures without a display."""

import os
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_robotics.environments.pusht import CORNERS, GOAL_POSE, PushT, PushTEnv, PushTPixels, corners_at, simulator
from keystone_robotics.errors import KeystoneError

seeds = st.integers(0, 2**31 - 1)
coordinates = st.floats(0, 512, width=32)
actions = st.lists(st.tuples(coordinates, coordinates), max_size=12)


@pytest.fixture(scope="module")
def used_env():
    return PushTEnv()


def rollout(env, targets):
    return [env.step(np.array(target, dtype=np.float32))[0]["environment_state"] for target in targets]


@settings(max_examples=40)
@given(seed=seeds, earlier_seed=st.none() | seeds, earlier=actions, later=actions)
def test_reset_and_what_follows_depend_on_the_seed_alone(used_env, seed, earlier_seed, earlier, later):
    fresh = PushTEnv()
    expected, expected_info = fresh.reset(seed=seed)
    used_env.reset(seed=earlier_seed)
    rollout(used_env, earlier)
    observation, info = used_env.reset(seed=seed)
    np.testing.assert_array_equal(info["initial_state"], expected_info["initial_state"])
    np.testing.assert_array_equal(observation["environment_state"], expected["environment_state"])
    for one, other in zip(rollout(used_env, later), rollout(fresh, later), strict=True):
        np.testing.assert_array_equal(one, other)


def test_seeds_give_different_states(used_env):
    states = [used_env.reset(seed=seed)[1]["initial_state"] for seed in range(20)]
    assert states[0].shape == (10,)
    assert states[0].dtype == np.float64
    assert len({state.tobytes() for state in states}) == 20


def test_initial_states_are_those_of_gym_pusht(used_env):
    upstream = simulator()()
    for seed in range(5):
        state = upstream.reset(seed=seed)[0]
        ours = used_env.reset(seed=seed)[1]["initial_state"]
        np.testing.assert_array_equal(ours[[0, 1, 4, 5]], state[:4])
        assert np.cos(ours[6] - state[4]) == pytest.approx(1.0)


@settings(max_examples=20)
@given(seed=seeds, targets=actions)
def test_observations_are_finger_and_gym_pusht_keypoints(used_env, seed, targets):
    observation, _ = used_env.reset(seed=seed)
    for target in targets:
        observation, *_ = used_env.step(np.array(target))
    inner = used_env._simulator
    assert used_env.observation_space.contains(observation)
    np.testing.assert_array_equal(observation["agent_pos"], np.array(inner.agent.position, dtype=np.float32))
    np.testing.assert_array_equal(observation["environment_state"][:2], observation["agent_pos"])
    keypoints = inner.get_keypoints(inner._block_shapes)
    np.testing.assert_allclose(observation["environment_state"][2:].reshape(8, 2), keypoints, atol=1e-3)


def test_corners_turn_with_the_pose():
    poses = np.array([[10.0, 20.0, 0.0], [10.0, 20.0, np.pi]])
    np.testing.assert_allclose(
        corners_at(poses), [np.add(CORNERS, [10, 20]), np.subtract([10, 20], CORNERS)], atol=1e-9
    )


@pytest.mark.parametrize(("shift", "success"), [(0.0, True), (1.5, True), (4.0, False), (60.0, False)])
def test_success_is_coverage_above_95_percent(used_env, shift, success):
    used_env.reset(seed=0)
    block = used_env._simulator.block
    block.angle, block.position = GOAL_POSE[2], (GOAL_POSE[0] + shift, GOAL_POSE[1])
    used_env._simulator.agent.position = (30, 30)
    _, reward, terminated, truncated, info = used_env.step(np.array([30.0, 30.0]))
    assert info["success"] is success
    assert terminated is success
    assert not truncated
    assert (info["coverage"] > 0.95) is success
    assert reward == pytest.approx(min(1.0, info["coverage"] / 0.95))


def test_actions_beyond_the_table_are_clipped(used_env):
    used_env.reset(seed=3)
    clipped = rollout(used_env, [(512.0, 0.0)] * 10)
    used_env.reset(seed=3)
    np.testing.assert_array_equal(rollout(used_env, [(900.0, -40.0)] * 10), clipped)


@pytest.mark.parametrize("action", [[np.nan, 1.0], [1.0, np.inf], [1.0], [[1.0, 2.0]]])
def test_broken_actions_are_refused(used_env, action):
    used_env.reset(seed=0)
    with pytest.raises(ValueError, match="two finite numbers"):
        used_env.step(np.array(action))


@pytest.mark.filterwarnings("ignore:.*Box:UserWarning")  # it would like normalised actions
def test_gymnasium_accepts_it():
    check_env(PushTEnv(), skip_render_check=True)


def test_benchmark():
    benchmark = PushT()
    assert benchmark.name == "pusht"
    assert benchmark.tasks() == ("pusht",)
    assert benchmark.max_steps("pusht") == 300
    assert benchmark.make("pusht").render() is None
    with pytest.raises(ValueError, match="did you mean 'pusht'"):
        benchmark.make("push")
    with pytest.raises(ValueError, match="did you mean 'pusht'"):
        benchmark.max_steps("push")


def test_pictures_show_the_state_and_no_earlier_episode():
    env = PushT().make("pusht", render=True)
    env.reset(seed=1)
    first = env.render()
    assert first.ndim == 3
    assert first.shape[2] == 3
    assert first.dtype == np.uint8
    env.step(np.array([400.0, 100.0]))
    assert (env.render() != first).any()
    env.reset(seed=1)
    np.testing.assert_array_equal(env.render(), first)
    env.close()


def in_new_process(code):
    hidden = ("SDL_VIDEODRIVER", "DISPLAY", "PYGAME_HIDE_SUPPORT_PROMPT", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_draws_without_a_display_and_without_a_word():
    done = in_new_process(
        "import sys; from keystone_robotics.environments.pusht import PushT\n"
        "assert 'gym_pusht' not in sys.modules and 'pygame' not in sys.modules\n"
        "env = PushT().make('pusht', render=True); env.reset(seed=0); assert env.render().std() > 0"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gym_pusht.envs.pusht", None)
    with pytest.raises(KeystoneError, match=r'pip install "keystone-robotics\[eval\]"'):
        PushT().make("pusht")


def test_pixels_are_gym_pushts_own_image_of_the_same_states():
    env, states = PushTPixels().make("pusht"), PushT().make("pusht")
    check_env(env, skip_render_check=True)
    observation, info = env.reset(seed=4)
    state, expected = states.reset(seed=4)
    np.testing.assert_array_equal(info["initial_state"], expected["initial_state"])
    assert observation.keys() == {"agent_pos", "pixels"}
    upstream = simulator()(obs_type="pixels_agent_pos", render_mode="rgb_array")
    np.testing.assert_array_equal(observation["pixels"], upstream.reset(seed=4)[0]["pixels"])
    drawer = PushTEnv()
    drawer.reset(seed=0)
    for _ in range(10):
        observation, *_ = env.step(np.array([256.0, 300.0]))
        state, *_ = states.step(np.array([256.0, 300.0]))
    np.testing.assert_array_equal(drawer.image_of(state["environment_state"]), observation["pixels"])
