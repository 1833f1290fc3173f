"""Environments of gymnasium's registry: named observations, success by info or by return, refusals in one line."""

import gymnasium
import numpy as np
import pytest

from keystone_robotics.environments import find_benchmark
from keystone_robotics.environments.registered import _suggestion
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import config_from
from keystone_robotics.evaluate.run import evaluate


class Reach(gymnasium.Env):
    """One step towards 1; says in its info whether it arrived."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, goal=1.0, silent=False, render_mode=None):
        self.goal, self.silent = goal, silent

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-0.5, 0.5)
        return np.array([self.at, self.goal]), {}

    def step(self, action):
        self.at += float(action[0])
        near = abs(self.at - self.goal) < 0.1
        return np.array([self.at, self.goal]), float(near), near, False, {} if self.silent else {"is_success": near}


@pytest.fixture(autouse=True)
def registered():
    gymnasium.register("keystone_tests/Reach-v0", Reach, max_episode_steps=5, reward_threshold=0.5)
    yield
    del gymnasium.registry["keystone_tests/Reach-v0"]


def roll(name, actions):
    benchmark = find_benchmark(name)
    (task,) = benchmark.tasks()
    env = benchmark.make(task)
    observation, info = env.reset(seed=3)
    assert info["success"] is False
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(observation["agent_pos"], again["agent_pos"])
    assert observation["environment_state"].dtype == np.float32
    outcomes = []
    for action in actions:
        position = observation["agent_pos"][0] if action is None else None
        step = [1.0 - position] if action is None else [action]
        observation, _, terminated, truncated, info = env.step(np.array(step, np.float32))
        outcomes.append(info["success"])
        if terminated or truncated:
            break
    env.close()
    return outcomes


def test_success_is_what_the_info_says():
    assert roll("gymnasium:keystone_tests/Reach-v0", [0.0, None]) == [False, True]
    assert roll("gymnasium:keystone_tests/Reach-v0", [0.0] * 9) == [False] * 5


def test_success_is_a_return_at_the_end_of_the_episode():
    name = "gymnasium:keystone_tests/Reach-v0?silent=true&min_return="
    assert roll(name + "1", [0.0, None]) == [False, True]
    assert roll(name + "2", [0.0, None]) == [False, False]
    assert roll(name + "-1", [0.0] * 9) == [False] * 4 + [True]  # not before it is over


def test_options_reach_the_environment():
    benchmark = find_benchmark("gymnasium:keystone_tests/Reach-v0?goal=0.25&max_episode_steps=3")
    assert benchmark.max_steps("keystone_tests/Reach-v0") == 3
    assert benchmark.make("keystone_tests/Reach-v0").reset(seed=0)[0]["agent_pos"][1] == 0.25


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("keystone_tests/Raech-v0", "did you mean 'keystone_tests/Reach-v0'"),
        ("", r"names no environment: expected gymnasium:ID or gymnasium:ID\?min_return=R"),
        ("CartPole-v1", r"its actions are Discrete\(2\), expected a flat Box"),
        ("keystone_tests/Reach-v0?gaol=1", "gymnasium cannot make .*gaol"),
        ("keystone_tests/Reach-v0?min_return=high", "min_return=high: expected a number"),
        ("no_such_module:X-v0", "no_such_module"),
    ],
)
def test_what_cannot_be_used_is_refused(name, said):
    with pytest.raises(KeystoneError, match=said) as refused:
        find_benchmark(f"gymnasium:{name}").tasks()
    assert "\n" not in str(refused.value)


def test_at_most_five_ids_are_suggested():
    with pytest.raises(KeystoneError, match="did you mean") as refused:
        find_benchmark("gymnasium:Humanoid-v99")
    assert 1 <= str(refused.value).count("-v") - 1 <= 5


def test_a_return_that_nobody_knows_is_a_letter():
    assert _suggestion(None) == "gymnasium:ID?min_return=R"


def test_an_environment_that_does_not_say_is_an_error_with_the_way_out():
    with pytest.raises(KeystoneError, match=r"no success in its info.*Reach-v0\?min_return=0.5 \(the threshold that"):
        roll("gymnasium:keystone_tests/Reach-v0?silent=true", [0.0] * 9)


def test_an_evaluation_of_a_registered_environment(tmp_path):
    settings = config_from(
        {
            "policy": "environments.walker:Walker",
            "env": "gymnasium:Pendulum-v1?min_return=-5000&max_episode_steps=8",
            "tasks": ["Pendulum-v1"],
            "episodes": 2,
            "arms": ["first", "medoid:k=4"],
            "latency": False,
        }
    )
    episodes = evaluate(settings, tmp_path / "own").episodes
    assert [one.success for one in episodes] == [True] * 4
    assert len({one.initial_state for one in episodes}) == 2


@pytest.mark.parametrize(("least", "success"), [(-5000, True), (5, False)])
def test_a_return_is_judged_where_the_step_limit_ends_the_episode(tmp_path, least, success):
    (one,) = evaluate(short(f"Pendulum-v1?min_return={least}"), tmp_path).episodes
    assert (one.steps, one.success, one.error) == (6, success, None)


def test_an_environment_that_does_not_say_is_an_error_at_the_step_limit_too(tmp_path):
    (one,) = evaluate(short("Pendulum-v1"), tmp_path).episodes
    assert "Pendulum-v1 has no success in its info" in one.error


def short(name):
    """One episode of 6 steps; the environment's own limit is 200."""
    given = {
        "policy": "environments.walker:Walker",
        "env": f"gymnasium:{name}",
        "tasks": ["Pendulum-v1"],
        "max_steps": 6,
    }
    return config_from({**given, "episodes": 1, "arms": ["first"], "latency": False})


def test_the_lower_step_limit_counts():
    for name, given, expected in (
        ("", 3, 3),
        ("", 9, 5),
        ("?max_episode_steps=2", 3, 2),
        ("?max_episode_steps=7", 6, 6),
    ):
        benchmark = find_benchmark(f"gymnasium:keystone_tests/Reach-v0{name}", given)
        assert benchmark.max_steps("keystone_tests/Reach-v0") == expected
