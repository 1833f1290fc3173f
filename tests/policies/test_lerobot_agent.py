"""Chunks that `LeRobotAgent` plans are the actions of LeRobot's own evaluation."""

import copy
import functools
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot.envs.factory import make_env
from lerobot.policies.factory import make_pre_post_processors
from lerobot.processor import PolicyProcessorPipeline, tokenizer_processor
from lerobot.scripts.lerobot_eval import rollout

import keystone_robotics as keystone
from keystone_robotics.environments import find_benchmark
from keystone_robotics.environments.benchmark import Observation
from keystone_robotics.environments.lerobot import LeRobotBenchmark
from keystone_robotics.errors import KeystoneError
from keystone_robotics.policies import lerobot_agent
from keystone_robotics.policies.lerobot_agent import LeRobotAgent
from tiny import build
from tiny.checkpoint import env_features, save_checkpoint, statistics
from tiny.common import assets, byte_tokenizer

STEPS = 11
OVERRIDES: dict[str, dict[str, Any]] = {
    "diffusion": {"n_action_steps": 4},
    "multi_task_dit": {"n_action_steps": 4, "image_resize_shape": (64, 64)},
    "smolvla": {},
    "pi05": {"tokenizer_max_length": 64},
}
Make = Callable[..., LeRobotAgent]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """`make("diffusion")`: an agent for PushT, made once for all who leave it as it is.

    It comes from a checkpoint; π0.5 from its parts, because loading would build the real sizes.
    """

    @functools.cache
    def agent(name: str, use: str = "shared", **overrides: Any) -> LeRobotAgent:
        policy = build(name, **{**env_features("pusht"), **OVERRIDES[name], **overrides})
        if name == "pi05":
            with pytest.MonkeyPatch.context() as patch:
                tokenizer = byte_tokenizer(assets() / "paligemma")
                patch.setattr(tokenizer_processor.AutoTokenizer, "from_pretrained", lambda *_: tokenizer)
                stats = {"observation.state": statistics(0, 512, 2), "action": statistics(0, 512, 2)}
                processors = make_pre_post_processors(policy.config, dataset_stats=stats)
                patch.setattr(lerobot_agent, "load_policy", lambda *given: (policy, *processors))
                return LeRobotAgent(name, None)
        directory = tmp_path_factory.mktemp(name)
        save_checkpoint(policy, directory, "pusht")
        return LeRobotAgent(str(directory), "cpu", ("pusht/0",))

    return agent


def lerobots(agent: LeRobotAgent, seeds: Sequence[int]) -> np.ndarray:
    """(N, STEPS, 2) the actions of LeRobot's own rollout."""
    benchmark = LeRobotBenchmark(f"lerobot:pusht?episode_length={STEPS}")
    vector = make_env(benchmark.config, n_envs=len(seeds))["pusht"][0]
    identity = PolicyProcessorPipeline(steps=[]), PolicyProcessorPipeline(steps=[])
    torch.manual_seed(7)
    found = rollout(vector, agent.policy, *identity, agent._preprocess, agent._postprocess, seeds=list(seeds))
    vector.close()
    actions: np.ndarray = found["action"].numpy()
    return actions


def ours(agent: LeRobotAgent, seeds: Sequence[int]) -> np.ndarray:
    """(N, STEPS, 2) the same through `plan`."""
    benchmark = LeRobotBenchmark("lerobot:pusht")
    agent.fit(benchmark)
    envs = [benchmark.make("pusht/0") for _ in seeds]
    histories = [deque([env.reset(seed=seed)[0]], maxlen=agent.history) for env, seed in zip(envs, seeds, strict=True)]
    done: list[np.ndarray] = []
    torch.manual_seed(7)
    while len(done) < STEPS:
        chunks = agent.plan(histories, ["push the T"] * len(seeds))
        assert chunks.dtype == np.float32
        for step in range(min(agent.execute, STEPS - len(done))):
            for env, history, chunk in zip(envs, histories, chunks, strict=True):
                history.append(env.step(chunk[step])[0])
            done.append(chunks[:, step])
    for env in envs:
        env.close()
    return np.stack(done, axis=1)


@pytest.mark.parametrize(("seeds", "attached"), [((3,), False), ((3, 4, 5), True)])
@pytest.mark.parametrize("name", OVERRIDES)
def test_plans_are_lerobots_actions(make: Make, name: str, seeds: tuple[int, ...], attached: bool) -> None:
    agent = make(name)
    results = []
    for run in (lerobots, ours):
        if attached:
            keystone.attach(agent.policy, k=1, seed=5)
        results.append(run(agent, seeds))
        keystone.detach(agent.policy)
    difference = np.abs(results[0] - results[1]).max()
    print(f"{name}, {len(seeds)} rows, attached {attached}: {difference:.2e} of {np.ptp(results[0]):.1f}")
    assert difference <= 1e-4
    assert np.ptp(results[0], axis=1).min() > 1, "the actions of an episode vary, so that a mistake would show"


def observations(count: int, seed: int = 0) -> list[Observation]:
    """Made-up observations of PushT."""
    generator = np.random.default_rng(seed)
    return [
        {
            "pixels": generator.integers(0, 256, (96, 96, 3), np.uint8),
            "agent_pos": generator.uniform(0, 512, 2),
            "task": "push",
        }
        for _ in range(count)
    ]


@settings(deadline=None, max_examples=8)
@given(data=st.data())
@pytest.mark.parametrize("name", ["diffusion", "multi_task_dit", "smolvla"])
def test_any_subset_of_episodes_may_be_planned_for(make: Make, name: str, data: Any) -> None:
    """A row's chunk depends on its own history and noise: not on its neighbours, nor on earlier rounds."""
    frames = observations(6)
    # All is drawn before anything is attached: Hypothesis may break off where it draws.
    rows = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True))
    histories = [frames[row : row + data.draw(st.integers(1, 2))] for row in rows]
    agent = make(name)
    handle = keystone.attach(agent.policy, k=3, check=False)
    try:
        with handle.seeded(rows):
            together = agent.plan(histories, ["push"] * len(rows))
        for row, history, chunk in zip(rows, histories, together, strict=True):
            with handle.seeded([row]):
                alone = agent.plan([history], ["push"])
            np.testing.assert_allclose(chunk, alone[0], atol=2e-2, rtol=1e-4)
        assert handle.last is not None
    finally:
        keystone.detach(agent.policy)


@pytest.mark.parametrize("name", ["diffusion", "multi_task_dit"])
def test_the_past_matters_to_policies_that_look_back(make: Make, name: str) -> None:
    agent = make(name)
    assert agent.history == 2
    first, second, now = observations(3)
    chunks = []
    for history in ([first, now], [second, now], [now], [now, now], [first, second, now]):
        torch.manual_seed(0)
        chunks.append(agent.plan([history], ["push"]))
    assert np.abs(chunks[0] - chunks[1]).max() > 1
    np.testing.assert_array_equal(chunks[2], chunks[3], "a beginning is filled up with its first observation")
    np.testing.assert_array_equal(chunks[4], chunks[1], "nothing older than the policy's own queue")


def test_each_row_has_a_choice_of_its_own(make: Make) -> None:
    agent = make("smolvla")
    handle = keystone.attach(agent.policy, k=8, rule="medoid", seed=0)
    chunks = agent.plan([[frame] for frame in observations(3)], ["push"] * 3)
    assert chunks.shape == (3, 10, 2)
    assert handle.last is not None
    assert handle.last.index.shape == (3,)
    assert len(set(handle.last.index.tolist())) > 1
    assert handle.stats["rounds"] == 1
    keystone.detach(agent.policy)


def test_a_rule_that_looks_back_still_can(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning empties the policy's queues, and does not tell the rule that a new episode begins."""
    agent = make("smolvla")
    handle = keystone.attach(agent.policy, k=4, rule="coherent", seed=0)
    forgotten: list[int] = []
    monkeypatch.setattr(handle.engine.selector, "reset_history", lambda: forgotten.append(1))
    agent.policy._queues["action"].append(torch.zeros(2, 2))
    for seed in (0, 1):
        agent.plan([[frame] for frame in observations(2, seed)], ["push"] * 2)
    assert not forgotten
    assert not agent.policy._queues["action"]
    agent.policy.reset()
    assert forgotten, "a reset would have told it"
    keystone.detach(agent.policy)


def test_the_instruction_of_the_environment_comes_first(make: Make) -> None:
    agent = make("smolvla")
    (frame,) = observations(1)
    bare = {name: value for name, value in frame.items() if name != "task"}

    def plan(observation: Observation, task: str) -> np.ndarray:
        torch.manual_seed(0)
        return agent.plan([[observation]], [task])

    assert np.abs(plan(bare, "open") - plan(bare, "close the drawer")).max() > 1e-3, "the text matters"
    np.testing.assert_array_equal(plan({**bare, "task": "open"}, "close the drawer"), plan(bare, "open"))


def test_relative_actions_start_from_the_state_at_planning(make: Make) -> None:
    relative, absolute = (make("pi05", use_relative_actions=flag) for flag in (True, False))
    frames = observations(3)
    chunks = []
    for agent in (relative, absolute):
        torch.manual_seed(0)
        chunks.append(agent.plan([[frame] for frame in frames], ["push"] * 3))
    expected = np.stack([frame["agent_pos"] for frame in frames])[:, None].repeat(10, axis=1)
    np.testing.assert_allclose(chunks[0] - chunks[1], expected, atol=1e-3)


@pytest.mark.parametrize(("name", "longest"), [("diffusion", 15), ("smolvla", 10)])
def test_executed_steps(make: Make, name: str, longest: int) -> None:
    agent = make(name, "changed")
    for steps in (longest, 1):
        agent.execute = steps
        assert agent.execute == agent.policy.config.n_action_steps == steps
        assert agent.plan([observations(1)], ["push"]).shape[1] >= steps
    for steps in (0, longest + 1):
        with pytest.raises(KeystoneError, match=f"plans {longest} steps"):
            agent.execute = steps


def test_nested_images_and_processors_of_the_environment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIBERO names its cameras and gives the robot's state in parts, which its processor puts together."""
    agent = make("diffusion", "changed")
    monkeypatch.setattr(agent, "_from_env", LeRobotBenchmark("lerobot:libero").config.get_env_processors()[0])
    generator = np.random.default_rng(0)

    def frame() -> Observation:
        parts = {"eef": {"pos": 3, "quat": 4}, "gripper": {"qpos": 2, "qvel": 2}, "joints": {"pos": 7, "vel": 7}}
        state: dict[str, Any] = {
            group: {name: generator.normal(size=size) for name, size in sizes.items()} for group, sizes in parts.items()
        }
        state["eef"]["mat"] = np.eye(3)
        image = generator.integers(0, 256, (48, 48, 3), np.uint8)
        return {"pixels": {"image": image, "image2": image}, "robot_state": state, "task": "open the drawer"}

    frames = [frame(), frame()]
    batch = agent._named(frames, ["", ""])
    assert batch["observation.images.image2"].shape == (2, 3, 48, 48)
    assert batch["observation.state"].shape == (2, 8)
    np.testing.assert_allclose(batch["observation.state"][1, :3], frames[1]["robot_state"]["eef"]["pos"], atol=1e-6)
    assert batch["task"] == ["open the drawer"] * 2


def test_environments_that_do_not_fit(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make("diffusion", "changed")
    agent.fit(LeRobotBenchmark("lerobot:pusht"))
    with pytest.raises(KeystoneError, match=r"observation.state of shape \(2,\), but lerobot:metaworld.*state \(4,\)"):
        agent.fit(LeRobotBenchmark("lerobot:metaworld?task=push-v3"))
    with pytest.raises(KeystoneError, match=r"the policy takes observation.image, but .*environment_state"):
        agent.fit(find_benchmark("lerobot:pusht?obs_type=environment_state_agent_pos"))
    agent.fit(LeRobotBenchmark("lerobot:pusht"))
    monkeypatch.setattr(agent, "_action_dim", 3)
    with pytest.raises(KeystoneError, match="actions have 2 dimensions, the environment's 3"):
        agent.plan([observations(1)], ["push"])


def test_the_agent_is_what_the_evaluator_loads(make: Make, tmp_path: Path) -> None:
    from keystone_robotics.policies.load import load_agent

    save_checkpoint(build("smolvla", **env_features("pusht")), tmp_path, "pusht")
    agent = load_agent(str(tmp_path), "cpu")
    assert isinstance(agent, LeRobotAgent)
    assert (agent.history, agent.execute, agent.tasks) == (1, 5, ())
    untouched = copy.deepcopy(frames := observations(1))
    agent.plan([frames], ["push"])
    np.testing.assert_equal(frames, untouched)
