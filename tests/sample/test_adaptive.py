"""Adaptive K and adaptive horizon of an attached policy: equal to the fixed ones wherever they decide the same."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import keystone_robotics as keystone
from keystone_robotics.errors import KeystoneError, NoValidCandidate
from keystone_robotics.select.agreement import AdaptiveRange, agreed_steps, step_dispersion

LENGTH = 8


class Fan(nn.Module):
    """Chunks that move one unit a step and part from the middle on, by the first number of the observation."""

    stochastic = False

    def forward(self, observation):
        return self.sample(self.encode(observation), torch.randn(len(observation), LENGTH, 2))

    def encode(self, observation):
        return observation

    def sample(self, context, noise):
        time = torch.arange(float(LENGTH))[None, :, None]
        apart = (time >= LENGTH / 2) * context[:, None, :1] + 0.001
        return time + apart * noise


class Wandering(Fan):
    """Draws more noise on its way."""

    stochastic = True

    def sample(self, context, noise):
        return super().sample(context, noise + 0.1 * torch.randn_like(noise))


def rounds(policy, spec, observation, seeds=None, **options):
    """The events of one round, and what the policy returned."""
    events = []
    handle = keystone.attach(policy, spec, **options)
    handle.subscribe(events.append)
    try:
        with handle.seeded(seeds if seeds is not None else list(range(len(observation)))):
            chunk = policy(observation)
    finally:
        keystone.detach(policy)
    (event,) = events
    return event, chunk


SURE, UNSURE = [0.0, 0.0], [9.0, 0.0]


@pytest.mark.parametrize("policy", [Fan(), Wandering()], ids=["fixed", "stochastic"])
@pytest.mark.parametrize("rule", ["core-mean", "keystone"])
def test_where_the_rest_is_drawn_the_result_is_that_of_all_candidates(policy, rule):
    observation = torch.tensor([UNSURE, UNSURE])
    event, chunk = rounds(policy, f"{rule}:k=4..16:0.2", observation)
    every, whole = rounds(policy, f"{rule}:k=16", observation)
    assert event.k == 16
    assert event.selection.drawn.tolist() == [16, 16]
    assert torch.equal(event.candidates, every.candidates)
    assert torch.equal(chunk, whole)
    assert np.array_equal(event.selection.labels, every.selection.labels)


def test_where_the_few_agree_no_more_are_drawn():
    observation = torch.tensor([SURE])
    event, chunk = rounds(Fan(), "core-mean:k=4..16:0.2", observation)
    few, expected = rounds(Fan(), "core-mean:k=4", observation)
    assert (event.k, event.selection.drawn.tolist()) == (4, [4])
    assert torch.equal(event.candidates, few.candidates)
    assert torch.equal(chunk, expected)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.sampled_from([SURE, UNSURE]), min_size=1, max_size=4), st.sampled_from(["core-mean", "cluster-medoid"])
)
def test_a_row_does_not_depend_on_the_others_of_its_batch(rows, rule):
    spec = f"{rule}:k=4..9:0.2,execute=auto:0.2"
    event, chunk = rounds(Fan(), spec, torch.tensor(rows))
    for row, one in enumerate(rows):
        alone, own = rounds(Fan(), spec, torch.tensor([one]), [row])
        drawn = int(event.selection.drawn[row])
        assert drawn == alone.k == (4 if one == SURE else 9)
        assert torch.equal(chunk[row], own[0])
        for name in (
            "index",
            "consensus",
            "dispersion",
            "median_distance",
            "spread",
            "agreed_steps",
            "dropped",
            "drawn",
        ):
            assert getattr(event.selection, name)[row] == getattr(alone.selection, name)[0], name
        assert np.array_equal(event.selection.labels[row, :drawn], alone.selection.labels[0])
        assert set(event.selection.labels[row, drawn:]) <= {-2}


class Broken(Fan):
    """The first candidates of a round are no numbers."""

    bad = 4

    def sample(self, context, noise):
        chunks = super().sample(context, noise)
        if len(chunks) == 4:
            chunks = chunks.clone()
            chunks[: self.bad] = float("nan")
        return chunks


@pytest.mark.filterwarnings("ignore:dropped")
@pytest.mark.parametrize("bad", [3, 4])
def test_few_that_are_not_finite_do_not_agree(bad):
    policy = Broken()
    policy.bad = bad
    event, chunk = rounds(policy, "core-mean:k=4..16:0.2", torch.tensor([SURE]), check=False)
    assert event.k == 16
    assert event.selection.dropped.tolist() == [bad]
    assert torch.isfinite(chunk).all()
    policy.bad = 4
    with pytest.raises(NoValidCandidate):
        rounds(policy, "core-mean:k=4", torch.tensor([SURE]), check=False)


class BrokenRow(Fan):
    """The first four candidates of an observation whose second number is 1 are no numbers."""

    def sample(self, context, noise):
        chunks = super().sample(context, noise)
        first = len(chunks) % 4 == 0  # five more are drawn
        return chunks.masked_fill(first & (context[:, 1] == 1).expand(len(chunks))[:, None, None], float("nan"))


@pytest.mark.filterwarnings("ignore:dropped")
@pytest.mark.parametrize("broken", [0, 1])
def test_a_row_whose_few_are_not_finite_does_not_change_the_others(broken):
    rows = [SURE, SURE]
    rows[broken] = [0.0, 1.0]
    event, chunk = rounds(BrokenRow(), "core-mean:k=4..9:0.2", torch.tensor(rows), check=False)
    assert event.selection.drawn.tolist() == [9 if row == broken else 4 for row in range(2)]
    for row, one in enumerate(rows):
        alone, own = rounds(BrokenRow(), "core-mean:k=4..9:0.2", torch.tensor([one]), [row], check=False)
        assert torch.equal(chunk[row], own[0])
        assert event.selection.index[row] == alone.selection.index[0]


def test_the_limit_decides_and_both_cases_can_be_had_at_will():
    for limit, k in ((0, 16), (1, 4)):
        event, _ = rounds(Fan(), f"core-mean:k=4..16:{limit}", torch.tensor([UNSURE]))
        assert event.k == k


def test_the_handle_says_and_changes_what_is_adaptive():
    policy = Fan()
    handle = keystone.attach(policy, "core-mean:k=4..16,execute=2..6:0.1", seed=0)
    assert str(handle.spec) == "core-mean:k=4..16,seed=0,execute=2..6:0.1"
    policy(torch.tensor([SURE]))
    assert handle.stats["drawn"] == 4
    assert handle.last.agreed_steps.tolist() == [6]
    handle.k = 8
    assert handle.spec.k == 8
    handle.k = "2..4"
    assert (handle.k, handle.spec.k) == (4, "2..4")
    handle.k = 1  # nothing is adaptive with one candidate
    assert str(handle.spec) == "core-mean:k=1,seed=0,execute=6"
    with pytest.raises(ValueError, match="one candidate cannot disagree"):
        handle.execute = "auto"
    handle.k, handle.execute = 4, 3
    policy(torch.tensor([SURE]))
    assert handle.last.agreed_steps is None
    with pytest.raises(ValueError, match="k='auto': expected a whole number"):
        handle.k = "auto"
    keystone.detach(policy)


def test_replay_draws_the_candidates_again():
    policy, events = Fan(), []
    handle = keystone.attach(policy, "core-mean:k=4..16:0.2", seed=0, keep=2)
    handle.subscribe(events.append)
    for observation in (SURE, UNSURE):
        policy(torch.tensor([observation]))
    for number, event in enumerate(events):
        assert torch.equal(handle.replay(number), event.candidates)
    keystone.detach(policy)


def test_a_vectorised_sampler_is_refused():
    with pytest.raises(KeystoneError, match=r"k=LEAST\.\.MOST does not work with site="):
        keystone.attach(Fan(), k="4..16", site="forward")
    handle = keystone.attach(policy := Fan(), k=4, site="forward")
    with pytest.raises(KeystoneError, match="does not work with site="):
        handle.k = "4..16"
    keystone.detach(policy)


# ---- horizon


def test_steps_are_executed_up_to_where_the_candidates_part():
    event, chunk = rounds(Fan(), "core-mean:k=16,execute=auto:0.2", torch.tensor([SURE, UNSURE]))
    fixed, expected = rounds(Fan(), "core-mean:k=16", torch.tensor([SURE, UNSURE]))
    assert event.selection.agreed_steps.tolist() == [LENGTH, LENGTH // 2]
    assert fixed.selection.agreed_steps is None
    assert torch.equal(chunk, expected)  # the selection is that of the most steps


@pytest.mark.parametrize(
    ("execute", "expected"), [("auto:0.2", 4), ("1..3:0.2", 3), ("6..7:0.2", 6), ("2..8:1", 8), ("2..8:0", 2)]
)
def test_the_number_stays_between_least_and_most(execute, expected):
    event, _ = rounds(Fan(), f"core-mean:k=16,execute={execute}", torch.tensor([UNSURE]))
    assert event.selection.agreed_steps.tolist() == [expected]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["l2", "l1"]), st.integers(2, 9), st.floats(1e-3, 1e3))
def test_steps_that_differ_alike_have_the_dispersion_of_the_whole(seed, metric, k, unit):
    random = np.random.default_rng(seed)
    shift = random.normal(size=(1, k, 1, 3))  # the same in every step
    chunks = unit * (random.normal(size=(1, 1, 5, 3)) + shift)
    selection = keystone.select(chunks, "medoid", metric=metric)
    found = step_dispersion(chunks, selection, None, metric, range(5))
    np.testing.assert_allclose(found, np.full((1, 5), selection.dispersion[0]), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:dropped")
def test_one_finite_candidate_says_nothing_about_any_step():
    chunks = np.zeros((1, 3, 5, 2))
    chunks[0, 1:] = np.nan
    selection = keystone.select(chunks, "medoid")
    dispersions = step_dispersion(chunks, selection, None, "l2", range(5))
    assert agreed_steps(dispersions, selection, AdaptiveRange(least=2)).tolist() == [2]


def test_a_space_and_the_first_executed_step_count():
    chunks = np.random.default_rng(0).normal(size=(1, 8, 6, 3))
    chunks[..., 0] = np.arange(6.0)
    for space, differ in ((keystone.ActionSpace(dims=1, steps=range(1, 5)), False), (None, True)):
        selection = keystone.select(chunks, "medoid", space)
        found = step_dispersion(chunks, selection, space, "l2", range(1, 5))
        assert found.shape == (1, 4)
        assert (found > 0).all() if differ else not found.any()
