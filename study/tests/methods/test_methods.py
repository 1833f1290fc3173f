"""Samplers of the study: known limits, independence of the batch, and what they refuse."""

import inspect

import pytest
import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.select import ActionSpace, select
from keystone_study.methods import METHODS, with_method
from keystone_study.methods.flow import core, derived_noise, integrate, velocity_of
from keystone_study.reproduce.search import CONTENDERS, RESCALED, TICKETS
from keystone_study.scorers.store import make_scorer, save_scorer

NAME = "metaworld-held-out-mixed"
SOME = {
    "rescaled": {"steps": "5", "factor": "4", "sigma": "0.5"},
    "ticket": {"steps": "5", "seed": "3"},
    "partial": {"k": "8", "steps": "4", "after": "2"},
    "core-mean": {"k": "8", "steps": "2", "temperatures": "1-0.6", "paired": "1"},
    "from-core-noise": {"k": "8", "steps": "2", "final": "3", "scale": "0.8"},
    "consensus": {"k": "8", "steps": "3"},
    "projected": {"k": "8", "steps": "2", "back": "0.5", "again": "2"},
}


@pytest.fixture(scope="module")
def inputs():
    policy = with_method(NAME, "ticket", **SOME["ticket"]).policy
    torch.manual_seed(0)
    observation = 0.3 * torch.randn(3, policy.config.observation_dim) + policy.observation_mean
    return policy, policy.encode(observation), torch.randn(3, 16, 4)


def sampled(method, inputs, **options):
    _, context, noise = inputs
    return with_method(NAME, method, **options).policy.sample(context, noise)


@pytest.mark.parametrize("method", METHODS)
def test_a_chunk_does_not_depend_on_the_rest_of_the_batch_and_follows_from_its_noise(method, inputs, tmp_path):
    original, context, noise = inputs
    save_scorer(make_scorer("taco", original.config), tmp_path)
    scored = {"k": "8", "steps": "2", "scorer": str(tmp_path)}
    policy = with_method(NAME, method, **{**SOME, "scored": scored}[method]).policy
    together = policy.sample(context, noise)
    alone = policy.sample(context[1:2], noise[1:2])
    assert together.shape == noise.shape
    assert torch.allclose(together[1], alone[0], atol=1e-4)
    assert torch.equal(policy.sample(context, noise), together)
    other = policy.sample(context, noise.flip(1))
    assert torch.allclose(other, together) == (method == "ticket")  # one noise for all rounds


def test_a_score_that_is_not_rescaled_gives_the_policys_own_sample(inputs):
    policy, context, noise = inputs
    own = integrate(velocity_of(policy), noise.flatten(1), context, 5).reshape(noise.shape)
    own = own * policy.action_std + policy.action_mean
    assert torch.allclose(sampled("rescaled", inputs, steps="5", factor="1", sigma="0.5"), own, atol=1e-4)
    sharper = sampled("rescaled", inputs, steps="5", factor="8", sigma="0.5")
    assert not torch.allclose(sharper, own, atol=1e-2)


def test_rescaled_scores_divide_the_variance_of_a_gaussian():
    """On a velocity field that is known exactly: data N(0, σ²), so that TSR's samples have variance σ² / factor."""
    sigma, factor = 0.5, 4.0

    class Gaussian:
        def velocity(self, state, time, context):
            t = time[:, None]
            variance = t**2 * sigma**2 + (1 - t) ** 2
            return state * (t * sigma**2 - (1 - t)) / variance  # E[x₁ − x₀ | x]

    noise = torch.randn(20000, 1, 1, generator=torch.Generator().manual_seed(0))
    drawn = METHODS["rescaled"](Gaussian(), torch.zeros(20000, 1), noise, 200, factor, sigma)
    assert float(drawn.var()) == pytest.approx(sigma**2 / factor, rel=0.05)


def test_selecting_after_the_last_step_is_the_paper_s_selection(inputs):
    policy, context, noise = inputs
    noises = derived_noise(noise, 8)
    state = integrate(velocity_of(policy), noises.flatten(2).flatten(0, 1), context.repeat_interleave(8, 0), 3).reshape(
        noises.shape
    )
    chosen = select(state[:, :, :8], "keystone", seed=0).index
    expected = state[torch.arange(3), torch.as_tensor(chosen)] * policy.action_std + policy.action_mean
    assert torch.allclose(sampled("partial", inputs, k="8", steps="3", after="3"), expected, atol=1e-5)


def test_the_core_is_that_of_core_mean(inputs):
    noise = inputs[2]
    chunks = derived_noise(noise, 8)
    ours = torch.stack([row[index].mean(0) for row, index in zip(chunks, core(chunks, 8), strict=True)])
    rule = select(chunks, "core-mean", space=ActionSpace(steps=8))
    assert torch.allclose(ours, rule.chunk, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("rescale", {}, "did you mean 'rescaled'"),
        ("ticket", {"sed": "1"}, "did you mean 'seed'"),
    ],
)
def test_what_is_wrong_is_said(name, options, says):
    with pytest.raises(KeystoneError, match=says):
        with_method(NAME, name, **options)


def test_every_contender_names_a_method_and_its_options():
    for one in (*CONTENDERS, *RESCALED, *TICKETS):
        if one.method:
            name, _, options = one.method.partition("?")
            known = set(inspect.signature(METHODS[name]).parameters)
            assert {pair.partition("=")[0] for pair in options.split("&")} <= known
