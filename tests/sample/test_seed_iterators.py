"""Seeds from an iterator, for callers that do not know in which batches their rows come; and K that grows later."""

import itertools

import pytest
import torch

import keystone_robotics as keystone


class Sampler(torch.nn.Module):
    def encode(self, observation):
        return observation

    def sample(self, context, noise):
        return context[:, None] + noise

    def act(self, observation):
        return self.sample(self.encode(observation), torch.randn(len(observation), 4, 2))


@pytest.mark.parametrize("batches", [[3], [1, 2], [1, 1, 1]])
def test_every_row_takes_the_next_seed(batches):
    policy = Sampler()
    handle = keystone.attach(policy, k=4)
    with handle.seeded([7, 8, 9]):
        expected = policy.act(torch.zeros(3, 2))
    with handle.seeded(itertools.count(7)):
        rows = [policy.act(torch.zeros(rows, 2)) for rows in batches]
    torch.testing.assert_close(torch.cat(rows), expected)


def test_too_few_seeds_are_an_error():
    policy = Sampler()
    handle = keystone.attach(policy, k=4)
    with handle.seeded(iter([7, 8])), pytest.raises(ValueError, match="ended after 2 of 3 seeds"):
        policy.act(torch.zeros(3, 2))


def test_what_is_no_seed_is_an_error():
    policy = Sampler()
    with keystone.attach(policy, k=4).seeded(iter(["seven"])), pytest.raises(TypeError, match="seed 'seven'"):
        policy.act(torch.zeros(1, 2))


def test_a_site_takes_one_seed_for_a_round():
    policy = Sampler()
    handle = keystone.attach(policy, k=4, site="act")
    seeds = itertools.count(7)
    with handle.seeded(seeds):
        policy.act(torch.zeros(3, 2))
    assert next(seeds) == 8


def test_the_check_is_made_again_when_one_candidate_becomes_several():
    class Broken(Sampler):
        def sample(self, context, noise):
            return super().sample(context, noise) if len(context) == 1 else super().sample(context, noise[:1])

    policy = Broken()
    handle = keystone.attach(policy, k=1, seed=0)
    policy.act(torch.zeros(1, 2))
    handle.k = 4
    with pytest.raises(keystone.KeystoneError, match="self-check failed"):
        policy.act(torch.zeros(1, 2))
