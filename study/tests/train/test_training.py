"""Fitting: resumable to the bit, for both classes of policies; and the recipe makes a policy that does the task."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from keystone_robotics.errors import KeystoneError
from keystone_study.policies.flow import load_flow
from keystone_study.policies.flow_agent import FlowAgent
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.diffusion_recipe import SETTINGS, DiffusionRecipe
from keystone_study.train.experts import find_expert
from keystone_study.train.flow_recipe import FlowRecipe
from keystone_study.train.optimise import Learner, Schedule, optimise

METAWORLD, PUSHT, PIXELS = find_expert("metaworld"), find_expert("pusht"), find_expert("pusht-pixels")
TINY = {**SETTINGS, "down_dims": (16,), "n_groups": 4, "diffusion_step_embed_dim": 16}
SCHEDULE = Schedule(iterations=12, batch=8, warmup=3, save_every=4)


@pytest.fixture(scope="module")
def reached() -> list[Demonstration]:
    made = (METAWORLD.demonstrate("reach-v3", "clean", 0, index) for index in range(20))
    return [one for one in made if one.success]


def recipe(policy: str, demonstrations: Sequence[Demonstration], seed: int = 0) -> FlowRecipe | DiffusionRecipe:
    if policy == "flow":
        return FlowRecipe(demonstrations, METAWORLD, seed)
    return DiffusionRecipe(demonstrations, METAWORLD, seed, TINY)


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return learner.module.state_dict()


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Interrupted(Exception):
    pass


def stop_at(iteration: int, learner: Learner) -> None:
    """Make the learner fail, as Ctrl-C would, in the middle of an iteration."""
    original, calls = learner.loss, []

    def loss(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        calls.append(1)
        if len(calls) == iteration:
            raise Interrupted
        return original(rows, generator)

    learner.loss = loss  # type: ignore[method-assign]


@pytest.mark.parametrize("policy", ["flow", "diffusion"])
def test_interrupted_training_ends_with_the_very_same_weights(policy: str, reached: list, tmp_path: Path):
    whole = recipe(policy, reached)
    loss = optimise(whole, SCHEDULE, 7, tmp_path / "whole.pt")
    for iteration in (2, 7):
        torch.manual_seed(iteration)  # the global generator has no say
        path = tmp_path / f"parts{iteration}.pt"
        broken = recipe(policy, reached)
        stop_at(iteration, broken)
        with pytest.raises(Interrupted):
            optimise(broken, SCHEDULE, 7, path)
        assert path.exists() == (iteration > 4)
        resumed = recipe(policy, reached)
        assert optimise(resumed, SCHEDULE, 7, path) == loss
        assert equal(weights(resumed), weights(whole))


def test_seeds_decide_weights_and_batches(reached: list, tmp_path: Path):
    start = copy.deepcopy(weights(recipe("flow", reached)))
    assert equal(start, weights(recipe("flow", reached)))
    assert not equal(start, weights(recipe("flow", reached, seed=1)))
    results = []
    for seed in (0, 1):
        learner = recipe("flow", reached)
        optimise(learner, SCHEDULE, seed, tmp_path / f"{seed}.pt")
        results.append(weights(learner))
    assert not equal(*results)


def test_training_leaves_the_global_generator_and_the_threads_alone(reached: list, tmp_path: Path):
    """LeRobot's policy draws from the global generator."""
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    optimise(recipe("diffusion", reached), SCHEDULE, 0, tmp_path / "one.pt")
    assert torch.equal(state, torch.get_rng_state())
    assert threads == torch.get_num_threads()


def test_what_is_left_is_the_running_average(reached: list, tmp_path: Path):
    learner = recipe("flow", reached)
    optimise(learner, SCHEDULE, 0, tmp_path / "one.pt")
    stored = torch.load(tmp_path / "one.pt", weights_only=True)
    assert equal(weights(learner), stored["average"])
    assert not equal(weights(learner), stored["module"])


def test_a_finished_checkpoint_needs_no_further_iteration(reached: list, tmp_path: Path):
    learner = recipe("flow", reached)
    loss = optimise(learner, SCHEDULE, 0, tmp_path / "one.pt")
    again = recipe("flow", reached)
    stop_at(1, again)
    assert optimise(again, SCHEDULE, 0, tmp_path / "one.pt") == loss
    assert equal(weights(again), weights(learner))


def test_a_broken_checkpoint_is_named(reached: list, tmp_path: Path):
    path = tmp_path / "one.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(KeystoneError, match=r"one\.pt.*delete it"):
        optimise(recipe("flow", reached), SCHEDULE, 0, path)


def test_the_learning_rate_rises_and_falls():
    schedule = Schedule(iterations=4000)
    rates = np.array([schedule.learning_rate_at(iteration) for iteration in range(1, 4001)])
    assert (np.diff(rates[:199]) > 0).all()
    assert (np.diff(rates[200:]) < 0).all()
    assert rates.max() == pytest.approx(1e-3, rel=0.02)
    assert rates[-1] == pytest.approx(5e-5)


def test_the_recipe_makes_a_policy_that_does_the_task(reached: list, tmp_path: Path):
    learner = FlowRecipe(reached, METAWORLD, 0)
    rows, generator = torch.arange(learner.examples), torch.Generator()
    before = learner.loss(rows, generator.manual_seed(0)).item()
    optimise(learner, Schedule(iterations=250, batch=64, warmup=30), 0, tmp_path / "work.pt")
    after = learner.loss(rows, generator.manual_seed(0)).item()
    assert after < 0.6 * before
    learner.save(tmp_path)
    agent = FlowAgent(load_flow(tmp_path), ["reach-v3"])
    env = METAWORLD.benchmark.make("reach-v3")
    torch.manual_seed(0)
    successes = 0
    for seed in range(6):
        observation, _ = env.reset(seed=seed)
        successes += _reaches(agent, env, observation)
    assert successes >= 3


def _reaches(agent, env, observation) -> bool:
    for _ in range(15):
        for action in agent.plan([[observation]], ["reach-v3"])[0][: agent.execute]:
            observation, _, success, _, _ = env.step(np.clip(action, -1, 1))
            if success:
                return True
    return False


def test_the_diffusion_checkpoint_is_lerobots(reached: list, tmp_path: Path):
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
    from lerobot.policies.factory import make_pre_post_processors

    learner = recipe("diffusion", reached)
    rows, generator = torch.arange(64), torch.Generator()
    before = learner.loss(rows, generator.manual_seed(0)).item()
    optimise(learner, Schedule(iterations=100, batch=32, warmup=20), 0, tmp_path / "work.pt")
    after = learner.loss(rows, generator.manual_seed(0)).item()
    assert after < 0.5 * before
    learner.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["type"] == "diffusion"

    policy = DiffusionPolicy.from_pretrained(tmp_path).eval()
    assert equal(policy.state_dict(), weights(learner))
    preprocess, postprocess = make_pre_post_processors(policy.config, pretrained_path=str(tmp_path))
    seen = reached[0]
    batch = preprocess(
        {
            "observation.state": torch.from_numpy(seen.agent_pos[:5]),
            "observation.environment_state": torch.from_numpy(seen.environment_state[:5]),
        }
    )
    assert batch["observation.environment_state"].abs().max() < 20  # constant numbers do not explode
    action = postprocess(policy.select_action(batch))
    assert action.shape == (5, 4)
    assert action.abs().max() <= 1.01


def test_pusht_chunks_are_relative_for_the_flow_policy_and_absolute_for_lerobots():
    one = PUSHT.demonstrate("pusht", "mixed", 0, 0)
    flow = FlowRecipe([one], PUSHT, 0)
    assert flow.module.config.relative == (0, 1)
    assert float(flow.module.action_mean.abs().max()) < 60  # pixels from the finger, not from the table's corner
    diffusion = DiffusionRecipe([one], PUSHT, 0, TINY)
    assert diffusion.loss(torch.arange(4), torch.Generator().manual_seed(0)).item() < 10


def test_a_policy_learns_from_the_images_that_the_environment_shows(tmp_path: Path):
    one = PIXELS.demonstrate("pusht", "mixed", 0, 0)
    short = Demonstration(one.agent_pos[:40], one.environment_state[:40], one.actions[:40], True)
    schedule = Schedule(iterations=12, batch=8, warmup=3, save_every=8)
    whole = FlowRecipe([short], PIXELS, 0)
    loss = optimise(whole, schedule, 7, tmp_path / "whole.pt")
    resumed = FlowRecipe([short], PIXELS, 0)
    stop_at(10, resumed)
    with pytest.raises(Interrupted):
        optimise(resumed, schedule, 7, tmp_path / "parts.pt")
    resumed = FlowRecipe([short], PIXELS, 0)
    assert optimise(resumed, schedule, 7, tmp_path / "parts.pt") == loss
    assert equal(weights(resumed), weights(whole))

    whole.save(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size < 2e6
    env = PIXELS.benchmark.make("pusht")
    observation, _ = env.reset(seed=0)
    agent = FlowAgent(load_flow(tmp_path), ["pusht"])
    assert agent.plan([[observation]], ["pusht"]).shape == (1, 16, 2)
    # the image of a stored state is the one that was observed in it
    seed_state, _ = PUSHT.benchmark.make("pusht").reset(seed=0)
    drawn = PIXELS.draw(seed_state["environment_state"][None])
    np.testing.assert_array_equal(drawn[0], observation["pixels"])
