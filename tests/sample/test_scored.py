"""A learned scorer as the rule: shown the policy's call and its candidates, its favourite is executed."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import keystone_robotics as keystone
from keystone_robotics.select.rules import bind


class Reacher(nn.Module):
    """Goals (B, 2) to chunks (B, 8, 2) around them; asks its own value function if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.width = nn.Parameter(torch.ones(()))

    def act(self, goal, *cameras, speed=0.5, **more):
        return goal[:, None] + speed * self.width * torch.randn(len(goal), 8, 2)


class Encoded(nn.Module):
    """The pair of methods that policies of one's own have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, observation):
        return self.sample(self.encode(observation), torch.randn(len(observation), 8, 4))

    def encode(self, observation):
        return self.layer(observation)

    def sample(self, context, noise):
        return context[:, None] + noise


def nearness(context, candidates):
    """The chunk that ends nearest to the goal."""
    return -(candidates[:, :, -1] - context["goal"][:, None]).norm(dim=-1)


def attached(rule, k=8, **options):
    policy = Reacher()
    return policy, keystone.attach(policy, k=k, seed=0, site="act", rule=rule, **options)


def rounds_of(handle):
    events = []
    handle.subscribe(events.append)
    return events


def test_the_favourite_of_each_row_is_executed():
    policy, handle = attached(keystone.Scored(nearness))
    events = rounds_of(handle)
    goal = torch.tensor([[0.0, 0.0], [5.0, 1.0], [-3.0, 2.0]])
    chunk = policy.act(goal)
    candidates = events[0].candidates
    best = nearness({"goal": goal}, candidates).argmax(1)
    assert len(set(best.tolist())) > 1
    torch.testing.assert_close(chunk, candidates[torch.arange(3), best])
    assert handle.last.rule == "nearness"
    assert not handle.last.synthesised
    assert ((handle.last.consensus > 0) & (handle.last.consensus <= 1)).all()


def test_the_context_has_every_argument_by_name():
    seen = []

    def score(context, candidates):
        seen.append(context)
        return torch.zeros(candidates.shape[:2])

    policy, handle = attached(keystone.Scored(score))
    goal = torch.zeros(1, 2)
    policy.act(goal, "left", "right", task="reach")
    policy.act(goal=goal, speed=0.1)
    assert seen[0] == {"goal": goal, "cameras": ("left", "right"), "speed": 0.5, "task": "reach"}
    assert seen[1] == {"goal": goal, "cameras": (), "speed": 0.1}
    assert handle.last.index.tolist() == [0]  # of equal ones the first


def test_the_context_of_ones_own_policy_is_its_encoding():
    policy = Encoded()
    seen = []

    def score(context, candidates):
        seen.append(context)
        return candidates.mean((2, 3))

    keystone.attach(policy, k=4, seed=0, rule=keystone.Scored(score))
    observation = torch.randn(2, 3)
    with torch.no_grad():
        policy(observation)
        torch.testing.assert_close(seen[0]["context"], policy.layer(observation))


def test_scores_hold_no_gradient_and_the_chunk_keeps_its_own():
    policy = Encoded()
    value = nn.Linear(4, 1)

    def score(context, candidates):
        assert not torch.is_grad_enabled()
        assert not candidates.requires_grad
        return value(candidates[:, :, 0])[..., 0]

    keystone.attach(policy, k=4, seed=0, rule=keystone.Scored(score))
    policy(torch.randn(1, 3)).sum().backward()
    assert policy.layer.weight.grad is not None
    assert value.weight.grad is None


def test_a_scorer_may_call_the_policy():
    asked = []

    def score(context, candidates):
        asked.append(policy.act(context["goal"]))  # its own method: one sample, no round
        return -(candidates - asked[-1][:, None]).square().sum((2, 3))

    policy, handle = attached(keystone.Scored(score))
    for _ in range(2):
        policy.act(torch.zeros(2, 2))
    assert len(asked) == 2
    assert handle.stats["rounds"] == 2


@given(st.lists(st.sampled_from([float("nan"), -float("inf"), -1.0, 0.0, 2.0, float("inf")]), min_size=6, max_size=6))
def test_only_valid_candidates_count(scores):
    candidates = torch.randn(1, 6, 4, 2, generator=torch.Generator().manual_seed(0))
    candidates[0, 1, 2, 0] = float("nan")
    rule = keystone.Scored(lambda context, shown: [scores]).of({}, candidates)
    valid = [score for number, score in enumerate(scores) if number != 1]
    if any(np.isnan(valid)):
        with pytest.raises(ValueError, match="returned NaN for a finite candidate"):
            keystone.select(candidates, rule)
        return
    selection = keystone.select(candidates, rule)
    index = int(selection.index[0])
    assert index != 1
    assert scores[index] == max(valid)


@pytest.mark.parametrize(
    "returned",
    [lambda c: torch.zeros(c.shape[0]), lambda c: torch.zeros(c.shape[1], c.shape[0]), lambda c: 1.0, lambda c: None],
)
def test_scores_of_another_shape_are_refused_and_nothing_is_lost(returned):
    policy, handle = attached(keystone.Scored(lambda context, candidates: returned(candidates)))
    with pytest.raises((ValueError, TypeError), match=r"scorer <lambda> returned .* expected \(B, K\)"):
        policy.act(torch.zeros(2, 2))
    handle.rule = "medoid"
    assert policy.act(torch.zeros(2, 2)).shape == (2, 8, 2)


def test_the_scorers_own_error_is_the_callers():
    policy, _ = attached(keystone.Scored(lambda context, candidates: context["gaol"]))
    with pytest.raises(KeyError, match="gaol"):
        policy.act(torch.zeros(1, 2))


def test_without_a_policy_there_is_no_call_to_look_at():
    with pytest.raises(TypeError, match="scorer nearness needs what a policy was called with"):
        keystone.select(np.zeros((4, 8, 2)), keystone.Scored(nearness))
    with pytest.raises(TypeError, match="expected a function score"):
        keystone.Scored("nearness")


def test_the_rest_of_an_adaptive_round_is_scored_with_the_first_few():
    shown = []

    def score(context, candidates):
        shown.append(candidates.shape[1])
        return candidates.sum((2, 3))

    policy = Encoded()
    handle = keystone.attach(policy, k="4..8:0", seed=0, rule=keystone.Scored(score))
    events = rounds_of(handle)
    policy(torch.zeros(1, 3))
    assert shown == [4, 8]
    assert handle.last.index.item() == events[0].candidates.sum((2, 3)).argmax().item()


def test_k_is_found_with_the_scorer_in_the_round(tmp_path, monkeypatch):
    monkeypatch.setenv("KEYSTONE_CACHE", str(tmp_path))
    shown = set()

    def score(context, candidates):
        shown.add(candidates.shape[1])
        return nearness(context, candidates)

    policy, handle = attached(keystone.Scored(score), k="auto")
    for _ in range(3):
        policy.act(torch.zeros(1, 2))
    assert handle.k >= 1
    assert len(shown) > 1, "the selection is timed with the scorer"


def test_rule_may_change_between_rounds():
    policy, handle = attached("keystone")
    policy.act(torch.zeros(1, 2))
    handle.rule = keystone.Scored(nearness)
    policy.act(torch.zeros(1, 2))
    assert handle.last.rule == "nearness"
    assert str(handle.spec).startswith("nearness")
    handle.rule = "keystone"
    policy.act(torch.zeros(1, 2))
    assert handle.last.rule == "keystone"


def test_a_copy_has_the_scorer_and_a_pickle_the_policy_alone():
    policy, _ = attached(keystone.Scored(nearness))
    twin = copy.deepcopy(policy)
    twin.act(torch.zeros(1, 2))
    assert keystone.attached(twin).last.rule == "nearness"
    alone = pickle.loads(pickle.dumps(policy))
    assert keystone.attached(alone) is None
    assert pickle.loads(pickle.dumps(bind(keystone.Scored(nearness), {}))) == keystone.Scored(nearness)
