"""Numbers of every size and type: the selection ends, and what it returns is finite, under every rule and on every path."""

import threading
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import keystone_robotics as keystone
from keystone_robotics import ActionSpace, NoValidCandidate, RuleResult
from keystone_robotics.select import engine

NAMES = list(keystone.RULES)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def within(seconds, function):
    """The result of a function in a thread of its own: compiled code that does not end fails a test instead of blocking it."""
    outcome = []

    def call():
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    engine.warm_up()
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, f"not finished after {seconds} s"
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


@pytest.mark.parametrize("rule", ["medoid", "cluster-mean", "core-mean"])
def test_candidates_of_about_the_size_that_is_dropped(rule):
    """Half of them NaN. A candidate is dropped or not, in both precisions alike: otherwise a count of one is used with the rows
    of the other, and the search for the median never ends on a NaN."""

    def select_all():
        for seed in range(400):
            generator = np.random.default_rng(seed)
            chunks = generator.normal(size=(6, 4, 8))
            chunks *= 1e15 / np.sqrt(np.square(chunks).sum((1, 2), keepdims=True))  # where the bound on the norm was
            chunks *= 1 + 1e-7 * generator.normal(size=(6, 1, 1))
            chunks[generator.permutation(6)[:3], 0, 0] = np.nan
            for values in (
                chunks,
                np.sign(chunks) * 2.0**49 * (1 - 2.0**-24 * generator.integers(-1, 2, chunks.shape)),
            ):
                try:
                    chunk = keystone.select(values.astype(np.float32), rule).chunk
                except NoValidCandidate:
                    continue
                assert np.isfinite(chunk).all(), seed

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        within(60, select_all)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_every_size_and_type(data):
    k, rule = data.draw(st.integers(1, 9)), data.draw(st.sampled_from(NAMES))
    dtype, metric = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(["l2", "l1", "cosine"]))
    size = 10.0 ** data.draw(st.floats(-40, 38))
    broken = data.draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf, None]), min_size=k, max_size=k))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    chunks = torch.from_numpy(size * generator.normal(size=(k, 3, 2)))
    chunks[torch.from_numpy(generator.random(k) < 0.2)] *= 10.0 ** data.draw(
        st.floats(-40, 40)
    )  # other sizes beside it
    for candidate, value in zip(chunks, broken):
        if value is not None:
            candidate[generator.integers(3), generator.integers(2)] = value
    chunks = chunks.to(dtype)
    usable = (chunks.double().abs() < 2.0**49).flatten(1).all(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "dropped")
        try:
            selection = within(20, lambda: keystone.select(chunks, rule, metric=metric))
        except NoValidCandidate:
            assert not usable.any()
            return
    assert selection.valid.tolist() == usable.tolist()
    assert usable[selection.index]
    assert selection.chunk.dtype is dtype
    assert torch.isfinite(selection.chunk).all()
    assert np.isfinite([selection.spread, selection.consensus, selection.median_distance, selection.dispersion]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("made", [np.nan, np.inf, 1e300])
def test_a_chunk_of_the_users_own_rule_that_is_not_finite(dtype, made):
    """Also one that is finite in float64 alone. The candidate that the rule named is returned."""
    chunks = torch.randn(4, 3, 2, dtype=torch.float64).to(dtype)
    chunks[0, 0, 0] = torch.nan

    def mine(round):
        whole = round.chunks.mean(0)
        whole[1, 1] = made
        return RuleResult(1, chunk=whole)

    if made == 1e300 and dtype is torch.float64:
        assert keystone.select(chunks[1:], mine).synthesised
        return
    with pytest.warns(RuntimeWarning) as caught:
        selection = keystone.select(chunks, mine)
    assert "rule mine returned a chunk that is not finite" in str(caught[-1].message)
    assert "candidate 2 is returned" in str(caught[-1].message)
    assert caught[-1].filename == __file__
    assert (selection.index, selection.synthesised) == (2, False)
    assert torch.equal(selection.chunk, chunks[2])


def test_only_the_broken_round_of_a_batch_is_replaced():
    chunks = np.random.default_rng(0).normal(size=(3, 4, 2, 2)).astype(np.float16)

    def mine(round):
        return RuleResult(3, chunk=np.full((2, 2), 1e5 if round.row == 1 else 7.0))  # 1e5 overflows float16

    with pytest.warns(RuntimeWarning, match="candidate 3 is returned"):
        selection = keystone.select(chunks, mine)
    assert selection.chunk.dtype == np.float16
    np.testing.assert_array_equal(selection.chunk[1], chunks[1, 3])
    assert (selection.chunk[[0, 2]] == 7).all()


def test_a_rule_that_names_a_broken_candidate():
    """A rule class of the user's own, with its own `select_batch`: whatever it says, a NaN is not returned."""

    class Wrong(keystone.RULES["medoid"]):
        def select_batch(self, candidates):
            result = super().select_batch(candidates)
            result.indices[:, 0] = 0
            return result

    chunks = np.ones((3, 2, 2))
    chunks[0] = np.nan
    with pytest.warns(RuntimeWarning) as caught:
        selection = keystone.select(chunks, Wrong())
    assert "candidate 1 is returned instead" in str(caught[-1].message)
    assert selection.index == 1
    assert np.isfinite(selection.chunk).all()


@pytest.mark.parametrize(
    ("space", "value", "cause"),
    [
        (
            ActionSpace(rotation={"quaternion-xyzw": 1}),
            0.0,
            "a quaternion-xyzw rotation of length 0 in dimensions 1 to 4",
        ),
        (ActionSpace(rotation={"6d": 1}), 0.0, "a 6d rotation of length 0 in dimensions 1 to 6"),
        (ActionSpace(scale=1e-20), 1.0, r"a number of 5.6e\+14 or more after division by its scale \(smallest 1e-20\)"),
        (ActionSpace(scale={3: 1e-300}), 1.0, r"after division by its scale \(smallest 1e-300\)"),
        (None, 1e15, r"a number of 5.6e\+14 or more;"),
        (ActionSpace(dims=2), np.inf, "a NaN or an infinity;"),
    ],
)
def test_the_message_names_what_is_wrong(space, value, cause):
    chunks = np.full((3, 2, 7), value)
    with pytest.raises(NoValidCandidate, match=f"none of the 3 candidates is usable: each holds .*{cause}"):
        keystone.select(chunks, space=space)


@pytest.mark.parametrize(
    "space", [None, ActionSpace(dims=2), ActionSpace(scale=2.0), ActionSpace(rotation={"axis-angle": 0})]
)
@pytest.mark.parametrize("shape", [(5, 4, 3), (1, 4, 3), (5, 1, 3), (1, 1, 3)])
def test_negative_strides(space, shape):
    """Also along an axis of length 1, where an array counts as contiguous in spite of them."""
    chunks = np.random.default_rng(0).normal(size=shape)
    turned = chunks[::-1, ::-1]
    expected = keystone.select(turned.copy(), space=space)
    np.testing.assert_array_equal(keystone.select(turned, space=space).chunk, expected.chunk)


@pytest.mark.parametrize(
    "candidates", [[[[0.0, 1.0]], [[2.0, 3.0]]], [[np.zeros(2)], [np.zeros(2)]], [0.0, 1.0], ["a", "b"]]
)
def test_nested_lists_are_named(candidates):
    with pytest.raises(TypeError, match=r"a list of (list|float|str): .*numpy.asarray\(candidates, dtype=float\)"):
        keystone.select(candidates)
