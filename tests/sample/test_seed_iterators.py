"""Seeds and episodes from an iterator, for callers that do not know in which batches their rows come; K and steps that change
later.
"""

import itertools
import re

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


def test_steps_that_change_in_the_middle_of_a_round_are_not_taken_for_checked():
    class Several(Sampler):
        """Right with two steps, wrong for several rows with three. Somebody sets three while a round is drawn."""

        num_inference_steps, change = 10, None

        def sample(self, context, noise):
            wrong = self.num_inference_steps == 3 and len(context) > 1
            if self.change:
                handle.steps, self.change = self.change, None
            return super().sample(context, noise[:1] if wrong else noise)

    policy = Several()
    handle = keystone.attach(policy, k=4, steps=2)
    policy.change = 3
    policy.act(torch.zeros(1, 2))
    assert handle.steps == 3
    with pytest.raises(keystone.KeystoneError, match="self-check failed"):
        policy.act(torch.zeros(1, 2))


@pytest.mark.parametrize("k", [1, 4])
def test_a_rehearsed_round_takes_no_episode_of_the_rounds_that_count(k):
    policy, heard, rehearsed = Sampler(), [], []
    handle = keystone.attach(policy, k=k)
    handle.subscribe(lambda event: heard.append(event.episodes))
    with handle.for_episodes(iter("ab")):
        policy.act(torch.zeros(1, 2))
        with handle.rehearsal(lambda event: rehearsed.append(event.episodes)):
            policy.act(torch.zeros(1, 2))
        policy.act(torch.zeros(1, 2))
    assert heard == [("a",), ("b",)]
    assert rehearsed == [((0, 0),)]


def test_a_round_that_cannot_be_reported_takes_its_episode_too():
    policy, heard = Sampler(), []
    handle = keystone.attach(policy, k=1)
    handle.subscribe(lambda event: heard.append(event.episodes))
    with handle.for_episodes(iter("abc")):
        for value in (0.0, float("nan"), 0.0):  # with K = 1 a chunk that is not finite is the policy's to handle
            policy.act(torch.full((1, 2), value))
    assert heard == [("a",), ("c",)]


def test_more_executed_steps_than_a_chunk_has_are_an_error():
    policy = Sampler()
    handle = keystone.attach(policy, k=4, execute=99)
    with pytest.raises(keystone.KeystoneError, match=r"execute=99: the policy's chunks have 4 steps"):
        policy.act(torch.zeros(1, 2))
    handle.execute = 4
    policy.act(torch.zeros(1, 2))


@pytest.mark.parametrize("rows", [1, 64])
def test_an_event_is_one_short_line(rows):
    policy, heard = Sampler(), []
    keystone.attach(policy, k=16).subscribe(heard.append)
    policy.act(torch.zeros(rows, 2))
    selected = r"\[\d+\]" if rows == 1 else "64 rows"
    shown = rf"<RoundEvent 0: K=16, candidates \({rows}, 16, 4, 2\), plain path, selected {selected}, .* ms>"
    assert re.fullmatch(shown, repr(heard[0]))
    assert len(repr(heard[0])) < 120
