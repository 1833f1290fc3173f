"""LeRobot's environments keep the promises of a benchmark."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_robotics.environments.lerobot import LeRobotBenchmark, LeRobotEnv
from keystone_robotics.errors import KeystoneError

STATES = np.random.default_rng(0).normal(size=(7, 3))


class CountingEnv(gymnasium.Env[Any, Any]):
    """Resets as LeRobot's LIBERO does (the next stored state at each), and ends as its Meta-World does (by a reset)."""

    task = "stand-in"
    observation_space = gymnasium.spaces.Dict(agent_pos=gymnasium.spaces.Box(-9, 9, (3,)))
    action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    _max_episode_steps = 30

    def __init__(self, init_state_id: int = 0, stride: int = 1) -> None:
        self.init_state_id, self.stride = init_state_id, stride
        self.task_description = ""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = STATES[self.init_state_id % len(STATES)] + 0.01 * np.random.rand(3)
        self.task_description = f"reach {self.state.round(1)}"
        self.init_state_id += self.stride
        return {"agent_pos": self.state.copy()}, {"is_success": False}

    def step(self, action: Any) -> Any:
        self.state = self.state + action
        observation, done = {"agent_pos": self.state.copy()}, bool(np.abs(self.state).max() > 5)
        if done:
            self.reset()
        return observation, 0.0, done, False, {"is_success": np.array([done])}

    def render(self) -> Any:
        return np.full((4, 4, 3), np.abs(self.state).max() > 5, np.uint8)[::-1]


def wrapped(env: gymnasium.Env[Any, Any]) -> LeRobotEnv:
    return LeRobotEnv(gymnasium.vector.SyncVectorEnv([lambda: env]))


@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(0, 2**30 - 1), min_size=1, max_size=6), st.integers(0, 20), st.integers(1, 5), st.data())
def test_the_initial_state_follows_from_the_seed_alone(seeds: list[int], start: int, stride: int, data: Any) -> None:
    env = wrapped(CountingEnv(start, stride))
    for seed in seeds:
        for _ in range(data.draw(st.integers(0, 2))):
            env.reset()
        observation, info = env.reset(seed=seed)
        fresh, _ = wrapped(CountingEnv()).reset(seed=seed)
        np.testing.assert_array_equal(observation["agent_pos"], fresh["agent_pos"])
        assert np.abs(observation["agent_pos"] - STATES[seed % 7]).max() < 0.011
        assert observation["task"] == env.instruction == fresh["task"] != ""
        assert info["success"] is False


def test_a_reset_leaves_the_global_generator_alone() -> None:
    env = wrapped(CountingEnv())
    np.random.seed(3)
    expected = np.random.rand()
    np.random.seed(3)
    env.reset(seed=11)
    assert np.random.rand() == expected


def test_the_last_step_is_seen_and_filmed() -> None:
    env = wrapped(CountingEnv())
    env.reset(seed=2)
    for _ in range(20):
        observation, _, terminated, _, info = env.step(np.ones(3, np.float32))
        if terminated:
            break
        assert not info["success"]
    assert terminated
    assert info["success"] is True
    assert np.abs(observation["agent_pos"]).max() > 5
    assert env.render().max() == 1, "the environment had reset itself already"
    assert env.reset(seed=2)[1]["success"] is False


def test_a_seed_picks_an_episode_of_robomme() -> None:
    class Builder:
        def get_episode_num(self) -> int:
            return 5

    class EpisodeEnv(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            del self.init_state_id
            self._episode_idx, self._builder = 0, Builder()

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return {"agent_pos": np.full(3, self._episode_idx)}, {}

    env = wrapped(EpisodeEnv())
    assert [env.reset(seed=seed)[0]["agent_pos"][0] for seed in (0, 3, 5, 13, 3)] == [0, 3, 0, 3, 3]


@pytest.fixture(scope="module")
def pusht() -> Iterator[LeRobotEnv]:
    env = LeRobotBenchmark("lerobot:pusht").make("pusht/0")
    yield env
    env.close()


def test_pusht() -> None:
    benchmark = LeRobotBenchmark("lerobot:pusht?episode_length=3")
    assert benchmark.name == "lerobot:pusht?episode_length=3"
    assert benchmark.config.type == "pusht"
    assert benchmark.tasks() == ("pusht/0",)
    assert benchmark.max_steps("pusht/0") == 3
    assert LeRobotBenchmark("lerobot:pusht").max_steps("pusht/0") == 300
    env = benchmark.make("pusht/0", render=True)
    observation, _ = env.reset(seed=1)
    assert observation["pixels"].shape == (96, 96, 3)
    assert observation["task"] == ""
    ends = [env.step(np.array([700.0, 256.0], np.float32))[3] for _ in range(3)]
    assert ends == [False, False, True], "the time limit is the environment's own, and its last step is seen"
    image = env.render()
    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    assert (env.action_space.low == -np.inf).all(), "LeRobot does not clip actions"
    env.close()


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**30 - 1), steps=st.integers(0, 4))
def test_pusht_begins_where_the_seed_says(pusht: LeRobotEnv, seed: int, steps: int) -> None:
    before, _ = pusht.reset(seed=seed)
    for _ in range(steps):
        pusht.step(np.array([100.0, 400.0], np.float32))
    after, _ = pusht.reset(seed=seed)
    other, _ = pusht.reset(seed=seed + 1)
    np.testing.assert_array_equal(before["pixels"], after["pixels"])
    np.testing.assert_array_equal(before["agent_pos"], after["agent_pos"])
    assert not np.array_equal(before["agent_pos"], other["agent_pos"])


def test_meta_world() -> None:
    benchmark = LeRobotBenchmark("lerobot:metaworld?task=push-v3")
    assert benchmark.tasks() == ("push-v3/0",)
    assert benchmark.max_steps("push-v3/0") == 500, "the environment's number, not the configuration's 400"
    assert LeRobotBenchmark("lerobot:metaworld?task=push-v3&episode_length=20").max_steps("push-v3/0") == 20
    env = benchmark.make("push-v3/0")
    first, _ = env.reset(seed=5)
    assert first["task"] == env.instruction != ""
    assert first["pixels"].shape == (480, 480, 3)
    simulator = env.unwrapped._env  # type: ignore[attr-defined]
    state = np.concatenate([simulator.data.qpos, simulator.data.qvel, simulator._get_obs()])
    env.step(np.ones(4, np.float32))
    env.reset()
    again, _ = env.reset(seed=5)
    np.testing.assert_array_equal(
        state, np.concatenate([simulator.data.qpos, simulator.data.qvel, simulator._get_obs()])
    )
    np.testing.assert_array_equal(first["pixels"], again["pixels"])
    another, _ = env.reset(seed=6)
    assert not np.array_equal(first["pixels"], another["pixels"])
    env.close()


def test_suites_have_numbered_tasks() -> None:
    benchmark = LeRobotBenchmark("lerobot:metaworld?task=very_hard,push-v3")
    names = benchmark.tasks()
    assert names[-1] == "push-v3/0"
    assert names[0] == "very_hard/0"
    env = benchmark.make("very_hard/1")
    assert env.get_wrapper_attr("task") == benchmark.make("very_hard/1").get_wrapper_attr("task")
    assert env.instruction != benchmark.make("very_hard/0").instruction
    with pytest.raises(KeystoneError, match="did you mean 'push-v3/0'"):
        benchmark.make("push-v4/0")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lerobot:pushed", "did you mean 'pusht'"),
        ("lerobot:pusht?episode_lenght=3", "did you mean 'episode_length'"),
        ("lerobot:pusht?episode_length=three", "three"),
        ("lerobot:metaworld?obs_type=touch", "touch"),
    ],
)
def test_names_that_are_wrong(name: str, message: str) -> None:
    with pytest.raises(KeystoneError, match=message):
        LeRobotBenchmark(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lerobot:libero", r"pip install \"lerobot\[libero\]\""),
        ("lerobot:metaworld", r"lerobot:metaworld\?task="),
        ("lerobot:isaaclab_arena", "Refusing to execute remote code"),
    ],
)
def test_environments_that_cannot_be_made(name: str, message: str) -> None:
    with pytest.raises(KeystoneError, match=message):
        LeRobotBenchmark(name).tasks()


def test_options_have_the_types_of_the_configuration() -> None:
    config = LeRobotBenchmark(
        "lerobot:libero?task=libero_goal,libero_10&task_ids=[1, 2]&init_states=false&camera_name_mapping={agentview_image: top}"
    ).config
    assert (config.task, config.task_ids, config.init_states) == ("libero_goal,libero_10", [1, 2], False)
    assert config.camera_name_mapping == {"agentview_image": "top"}
    assert config.features_map["pixels/agentview_image"] == "observation.images.top"
    assert LeRobotBenchmark("lerobot:libero?episode_length=null").config.episode_length is None


def test_only_the_chosen_task_of_a_suite_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIBERO's own classes need its assets; its configuration does not."""
    from lerobot.envs.configs import LiberoEnv

    made: list[Any] = []

    def create_envs(self: Any, n_envs: int, use_async_envs: bool = False) -> Any:
        numbers = self.task_ids or range(10)
        made.append((self.task, list(numbers)))
        one = lambda: gymnasium.vector.SyncVectorEnv([CountingEnv])  # noqa: E731
        return {suite: {number: one() for number in numbers} for suite in self.task.split(",")}

    monkeypatch.setattr(LiberoEnv, "create_envs", create_envs)
    benchmark = LeRobotBenchmark("lerobot:libero?task=libero_10,libero_goal")
    assert len(benchmark.tasks()) == 20
    assert benchmark.max_steps("libero_goal/3") == 30
    env = benchmark.make("libero_goal/3")
    assert made == [("libero_10,libero_goal", list(range(10))), ("libero_goal", [3])]
    assert env.reset(seed=3)[0]["agent_pos"].shape == (3,)
    assert LeRobotBenchmark("lerobot:libero?task_ids=[0]").tasks() == ("libero_10/0",)


def test_importing_the_environments_does_not_import_lerobot() -> None:
    code = "import sys, keystone_robotics.environments.lerobot; sys.exit('lerobot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
