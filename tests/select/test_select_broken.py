"""Candidates that must never be executed, and inputs that are none."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import keystone_robotics as keystone
from keystone_robotics import RULES, ActionSpace, NoValidCandidate
from keystone_robotics.select import engine

NAMES = sorted(RULES)
HUGE = [1e20, -1e20, float(np.finfo(np.float32).max), 1e16]
BAD = [np.nan, np.inf, -np.inf, *HUGE]


@pytest.fixture(params=["kernel", "numpy"])
def path(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(engine, "compiled_kernel", lambda: None)
    return request.param


def some_chunks(k: int = 7) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(k, 4, 3)).astype(np.float32)


@pytest.mark.parametrize("rule", NAMES)
@pytest.mark.parametrize(("bad", "metric"), [(np.nan, "l2"), (-np.inf, "l1"), (np.inf, "cosine"), (1e20, "l2")])
def test_broken_candidates_are_dropped(rule, bad, metric, path):
    chunks = some_chunks()
    clean = keystone.select(chunks[[1, 2, 4, 5, 6]], rule, metric=metric, **same_start(rule))
    chunks[0, 2, 1] = bad
    chunks[3] = bad
    with pytest.warns(RuntimeWarning) as caught:
        selection = keystone.select(chunks, rule, metric=metric, **same_start(rule))
    why = "a NaN or an infinity" if not np.isfinite(bad) else "a number of 5.6e+14 or more"
    assert [str(w.message) for w in caught] == [f"dropped 2 of 7 candidates: {why}"]
    assert caught[0].filename == __file__
    assert selection.index == [1, 2, 4, 5, 6][clean.index]
    assert np.flatnonzero(selection.labels < 0).tolist() == [0, 3]
    assert selection.labels[[1, 2, 4, 5, 6]].tolist() == clean.labels.tolist()
    assert selection.sizes.tolist() == clean.sizes.tolist()
    assert (selection.dropped, selection.valid.tolist()) == (2, [False, True, True, False, True, True, True])
    np.testing.assert_allclose(selection.chunk, clean.chunk)
    assert selection.spread == pytest.approx(clean.spread, rel=1e-4, abs=1e-6)
    assert selection.median_distance == pytest.approx(clean.median_distance, rel=1e-5)
    assert selection.consensus == clean.consensus
    assert selection.dispersion == pytest.approx(clean.dispersion, rel=1e-5)


def same_start(rule: str) -> dict:
    """The lots of "random" depend on K; the others do not depend on what was dropped."""
    return {"init": "farthest"} if rule in ("keystone", "cluster-medoid", "cluster-mean") else {}


def test_random_start_skips_what_was_dropped(path):
    """The lots are drawn among all, and the valid ones keep their order."""
    chunks = np.random.default_rng(0).normal(size=(8, 2, 2))
    order = engine.starting_order("random", 8, 0).tolist()
    chunks[order[0]] = np.nan
    chunks[order[2]] = np.inf
    with pytest.warns(RuntimeWarning):
        selection = keystone.select(chunks, "cluster-medoid", iterations=1)
    first, second = chunks[order[1]].ravel(), chunks[order[3]].ravel()
    valid = [i for i in range(8) if i not in (order[0], order[2])]
    nearer = [np.linalg.norm(chunks[i].ravel() - first) <= np.linalg.norm(chunks[i].ravel() - second) for i in valid]
    assert len({(a, b) for a, b in zip(nearer, selection.labels[valid].tolist())}) == 2


@pytest.mark.parametrize("rule", NAMES)
@pytest.mark.parametrize("bad", [np.nan, 1e16])
def test_nothing_valid_is_refused(rule, bad, path):
    chunks = np.full((4, 3, 2), bad)
    with pytest.raises(
        NoValidCandidate, match=r"^none of the 4 candidates is usable: each holds a (NaN|number of 5.6e.14)"
    ):
        keystone.select(chunks, rule)
    with pytest.raises(NoValidCandidate, match="none of the 1 candidates"):
        keystone.select(torch.from_numpy(chunks[:1]), rule)


@pytest.mark.parametrize("rule", NAMES)
def test_nothing_valid_in_some_rounds_names_them(rule, path):
    chunks = np.random.default_rng(0).normal(size=(5, 4, 3, 2))
    chunks[1], chunks[4], chunks[2, 0] = np.nan, np.inf, np.nan
    with pytest.raises(NoValidCandidate, match=r"none of the 4 candidates is usable in rounds \[1, 4\] of the batch"):
        keystone.select(chunks, rule)
    with pytest.raises(ValueError, match="rounds"):  # it is a ValueError, too
        keystone.select(chunks, rule)
    with pytest.raises(keystone.KeystoneError):
        keystone.select(chunks, rule)


@pytest.mark.parametrize("rule", NAMES)
def test_one_valid_candidate_is_taken(rule, path):
    chunks = some_chunks(5)
    chunks[[0, 1, 2, 4]] = np.nan
    with pytest.warns(RuntimeWarning, match="dropped 4 of 5"):
        selection = keystone.select(chunks, rule)
    assert (selection.index, selection.consensus, selection.spread) == (3, 1.0, 0.0)
    np.testing.assert_array_equal(selection.chunk, chunks[3])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e20])
@pytest.mark.parametrize(
    "space",
    [
        ActionSpace(dims=2),
        ActionSpace(steps=2),
        ActionSpace(dims=[0, 1, 3], gripper={3: "logit"}),
        ActionSpace(dims=[0, 1, 3], gripper={3: 0.5}),
        ActionSpace(rotation={"axis-angle": 1}),
        ActionSpace(rotation={"euler-xyz": 1}, scale=1e3),
    ],
)
def test_a_number_that_is_executed_counts_as_broken_wherever_it_is(bad, space, path):
    """The last dimension of the last step: outside the window, inside a rotation, squashed by a gripper."""
    chunks = np.random.default_rng(0).normal(size=(5, 4, 4)).astype(np.float32)
    chunks[2, 3, 3] = bad
    with pytest.warns(RuntimeWarning, match="dropped 1 of 5"):
        selection = keystone.select(chunks, space=space)
    assert selection.labels.tolist().index(-1) == 2


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_what_is_returned_is_always_sane(data):
    """Whatever the candidates hold, the chunk to execute is finite and of the size of an action, or nothing is returned."""
    k, rule = data.draw(st.integers(1, 6)), data.draw(st.sampled_from(NAMES))
    number = st.one_of(st.floats(width=32), st.floats(-10, 10, width=32), st.sampled_from([*BAD, 0.0, 1e14, -1e-40]))
    values = data.draw(st.lists(number, min_size=k * 4, max_size=k * 4))
    chunks = np.array(values, np.float32).reshape(k, 2, 2)
    metric = data.draw(st.sampled_from(["l2", "l1", "cosine"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "dropped")
        try:
            selection = keystone.select(chunks, rule, metric=metric)
        except NoValidCandidate:
            assert all(not np.isfinite(chunk).all() or np.abs(chunk).max() > 1e14 for chunk in chunks)
            return
    assert np.isfinite(selection.chunk).all()
    assert np.abs(selection.chunk).max() <= 1e15
    assert 1 / k <= selection.consensus <= 1
    assert 0 <= selection.dispersion <= 1
    assert selection.labels[selection.index] >= 0
    for i in np.flatnonzero(selection.labels < 0):
        assert not np.isfinite(chunks[i]).all() or np.abs(chunks[i]).max() > 1e14
    for i in np.flatnonzero(selection.labels >= 0):
        assert np.isfinite(chunks[i]).all()


def test_large_but_honest_numbers_are_kept():
    chunks = np.array([0, 1e13, 1.1e13, 1.2e13]).reshape(4, 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert keystone.select(chunks.astype(np.float32), "medoid").index == 1
        assert keystone.select(chunks, "keystone", init="farthest").index == 2


def test_the_warning_can_be_made_an_error():
    chunks = some_chunks()
    chunks[0] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="dropped 1 of 7"):
            keystone.select(chunks)


def test_no_warning_without_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rule in NAMES:
            keystone.select(some_chunks(), rule)


# --- inputs that are no candidates


@pytest.mark.parametrize("shape", [(), (5,), (5, 3), (2, 2, 2, 2, 2)])
@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_wrong_ranks(shape, make):
    hint = r".*candidates\[None\]" if len(shape) == 2 else ""
    with pytest.raises(ValueError, match=rf"candidates have shape .*: expected \(K, T, D\).*or \(B, K, T, D\){hint}"):
        keystone.select(make(shape))


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 3, 2, 2), (2, 0, 2, 2)])
@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_empty(shape, make):
    with pytest.raises(ValueError, match="there is nothing to select from"):
        keystone.select(make(shape))


@pytest.mark.parametrize(
    "candidates",
    [
        np.zeros((3, 2, 2), int), np.zeros((3, 2, 2), bool), np.zeros((3, 2, 2), complex), np.zeros((3, 2, 2), object),
        np.zeros((3, 2, 2), "U3"), torch.zeros(3, 2, 2, dtype=torch.int32), torch.zeros(3, 2, 2, dtype=torch.bool),
        torch.zeros(3, 2, 2, dtype=torch.complex64), [np.zeros((2, 2), int)] * 3, [torch.zeros(2, 2, dtype=torch.int64)] * 3,
    ],
)  # fmt: skip
def test_not_floating(candidates):
    with pytest.raises(TypeError, match="expected floating-point actions"):
        keystone.select(candidates)


@pytest.mark.parametrize("candidates", ["chunks", None, 3, 0.5, {"action": 1}, object(), iter([])])
def test_something_else(candidates):
    with pytest.raises(
        TypeError, match=r"candidates are a .*: expected a torch tensor, a numpy array, or a list of chunks"
    ):
        keystone.select(candidates)


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([], "empty list"),
        ((), "empty list"),
        ([np.zeros((2, 2)), np.zeros((3, 2))], r"chunks of one shape \(T, D\), got shapes \[\(2, 2\), \(3, 2\)\]"),
        ([np.zeros(2), np.zeros(2)], r"got shapes \[\(2,\)\]"),
        ([np.zeros((3, 2, 2))] * 2, r"got shapes \[\(3, 2, 2\)\]"),
    ],
)
def test_wrong_lists(candidates, message):
    with pytest.raises(ValueError, match=message):
        keystone.select(candidates)
