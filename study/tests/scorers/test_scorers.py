"""Learned selectors learn what they are meant to, and the sampler takes the candidate that they like best."""

import numpy as np
import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics.errors import KeystoneError
from keystone_study.methods import samplers
from keystone_study.policies.flow import FlowConfig, FlowPolicy
from keystone_study.scorers.store import SCORERS, load_scorer, make_scorer, save_scorer
from keystone_study.scorers.train import ScorerLearner, train_scorer
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.experts import find_expert

EXPERT = find_expert("metaworld")
CONFIG = FlowConfig(observation_dim=3, action_dim=4, horizon=4, n_action_steps=2, width=16, blocks=1)


@pytest.fixture(scope="module")
def policy() -> FlowPolicy:
    torch.manual_seed(0)
    return FlowPolicy(CONFIG).eval().requires_grad_(False)


def episode(action: float, success: bool, length: int = 12) -> Demonstration:
    state = np.zeros((length, 3), np.float32)
    return Demonstration(state, state, np.full((length, 4), action, np.float32), success)


def scores(scorer, policy: FlowPolicy, *actions: float) -> np.ndarray:
    candidates = torch.stack([torch.full((4, 4), action) for action in actions])[None]
    return scorer.score(policy.encode(torch.zeros(1, 3)), candidates)[0].numpy()


def test_taco_prefers_what_was_demonstrated_often(policy, tmp_path):
    episodes = [episode(1.0, True)] * 20 + [episode(-1.0, True)]
    learner = ScorerLearner("taco", policy, episodes, EXPERT, seed=0)
    prior = {name: value.clone() for name, value in learner.module.prior.state_dict().items()}
    scorer, seconds = train_scorer(learner, tmp_path / "work.pt", iterations=400)
    often, seldom, never = scores(scorer, policy, 1.0, -1.0, 4.0)
    assert often > seldom
    assert often > never
    assert seconds > 0
    assert all(torch.equal(value, prior[name]) for name, value in scorer.prior.state_dict().items())


def test_the_value_function_prefers_what_succeeded(policy, tmp_path):
    episodes = [episode(1.0, True)] * 5 + [episode(-1.0, False)] * 5
    scorer, _ = train_scorer(ScorerLearner("value", policy, episodes, EXPERT, seed=0), tmp_path / "work.pt", 400)
    good, bad = scores(scorer, policy, 1.0, -1.0)
    assert good > bad + 0.3


@pytest.mark.parametrize("name", SCORERS)
def test_a_stored_scorer_scores_alike_and_the_sampler_takes_its_best(policy, name, tmp_path):
    scorer = make_scorer(name, CONFIG, seed=3)
    save_scorer(scorer, tmp_path)
    context, candidates = policy.encode(torch.randn(2, 3)), torch.randn(2, 5, 4, 4)
    expected = scorer.score(context, candidates)
    assert expected.shape == (2, 5)
    torch.testing.assert_close(load_scorer(tmp_path, CONFIG).score(context, candidates), expected)
    noise = torch.randn(2, 4, 4)
    options = {"k": 6, "steps": 2}
    chosen = samplers.scored(policy, context, noise, **options, scorer=str(tmp_path))
    every = samplers.derived_noise(noise, 6)  # an untrained policy does not move the noise
    best = scorer.score(context, every).argmax(1)
    torch.testing.assert_close(chosen, every[torch.arange(2), best])


@pytest.mark.parametrize("name", SCORERS)
def test_an_attached_policy_executes_what_its_scorer_likes_best(policy, name):
    scorer, observation, events = make_scorer(name, CONFIG, seed=3), torch.randn(2, 3), []
    handle = keystone.attach(policy, k=6, seed=0, rule=scorer.rule(policy))
    handle.subscribe(events.append)
    try:
        chosen = policy(observation)
    finally:
        keystone.detach(policy)
    candidates = events[0].candidates  # an untrained policy's are normalised already
    best = scorer.score(policy.encode(observation), candidates).argmax(1)
    torch.testing.assert_close(chosen, candidates[torch.arange(2), best])
    assert handle.last.rule == name


def test_what_is_no_scorer_is_refused(tmp_path):
    with pytest.raises(KeystoneError, match="did you mean 'taco'"):
        make_scorer("tacos", CONFIG)
    with pytest.raises(KeystoneError, match="cannot be loaded"):
        load_scorer(tmp_path, CONFIG)
