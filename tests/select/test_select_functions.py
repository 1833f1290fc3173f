"""Rules of the user's own: any function of a `keystone.Round`."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics import ActionSpace, Round, RuleResult

CHUNKS = np.random.default_rng(0).normal(size=(6, 4, 3))


@pytest.mark.parametrize(
    "index",
    [
        3,
        np.int64(3),
        np.int8(3),
        np.uint16(3),
        np.array(3),
        torch.tensor(3),
        np.array([9, 9, 9, 0]).argmin(),
        RuleResult(3),
    ],
)
def test_an_index(index):
    def third(round):
        return index

    selection = keystone.select(CHUNKS, third)
    assert selection.index == 3
    assert type(selection.index) is int
    assert np.shares_memory(selection.chunk, CHUNKS)
    assert (selection.rule, selection.clustered, selection.synthesised) == ("third", False, False)
    assert selection.labels.tolist() == [0] * 6
    assert selection.median_distance == pytest.approx(keystone.select(CHUNKS, "medoid").median_distance)


def test_what_a_function_is_shown():
    chunks = CHUNKS.astype(np.float32)
    chunks[[1, 4], 0, 2] = np.nan  # does not count, but would be executed
    space = ActionSpace(dims=2, steps=3, scale=2.0)
    seen = []

    def look(round: Round, extra: int) -> int:
        seen.append((round, extra))
        return 0

    with pytest.warns(RuntimeWarning, match="dropped 4 of 12"):
        selection = keystone.select(np.stack([chunks, chunks]), look, space, seed=7, metric="l1", extra=5)
    assert selection.index.tolist() == [0, 0]
    assert [round.row for round, _ in seen] == [0, 1]
    round, extra = seen[0]
    kept = chunks[[0, 2, 3, 5]]
    assert extra == 5
    assert (round.metric, round.seed, round.space) == ("l1", 7, space)
    assert round.chunks.dtype == round.features.dtype == np.float64
    np.testing.assert_array_equal(round.chunks, kept)
    np.testing.assert_allclose(round.features, kept[:, :3, :2].reshape(4, 6) / 2)
    flat = round.features
    np.testing.assert_allclose(round.distances, np.abs(flat[:, None] - flat[None]).sum(2), atol=1e-12)
    np.testing.assert_allclose(round.distances_to(round.embed(kept[1:3])), round.distances[:, 1:3], atol=1e-12)
    assert round.layout.steps == (0, 1, 2)


def test_a_function_may_scribble_on_what_it_is_shown():
    before = CHUNKS.copy()

    def scribble(round):
        round.chunks[:] = 0
        round.features[:] = np.nan
        return 2

    np.testing.assert_array_equal(keystone.select(CHUNKS, scribble).chunk, before[2])
    np.testing.assert_array_equal(CHUNKS, before)


def test_indices_count_the_valid_candidates():
    chunks = CHUNKS.copy()
    chunks[[0, 2]] = np.inf
    with pytest.warns(RuntimeWarning, match="dropped 2 of 6"):
        selection = keystone.select(chunks, lambda shown: 1)
    assert selection.index == 3
    assert selection.labels.tolist() == [-1, 0, -1, 0, 0, 0]
    np.testing.assert_array_equal(selection.chunk, chunks[3])


@pytest.mark.parametrize(
    "labels", [[5, 5, 9, 5, 7, 9], np.array([5, 5, 9, 5, 7, 9]), torch.tensor([5, 5, 9, 5, 7, 9]), list("bbcbac")]
)
def test_labels_are_renumbered_with_the_winner_first(labels):
    selection = keystone.select(CHUNKS, lambda shown: RuleResult(2, labels=labels))
    assert selection.labels.tolist() == [1, 1, 0, 1, 2, 0]
    assert selection.sizes.tolist() == [2, 3, 1]
    assert selection.clustered is True
    assert selection.consensus == pytest.approx(1 / 3)


def test_labels_with_dropped_candidates_and_in_a_batch():
    chunks = np.stack([CHUNKS, CHUNKS])
    chunks[0, 1] = np.nan

    def split(round):
        return RuleResult(0, labels=np.arange(len(round.chunks)) // 2) if round.row == 0 else RuleResult(0)

    with pytest.warns(RuntimeWarning):
        selection = keystone.select(chunks, split)
    assert selection.labels.tolist() == [[0, -1, 0, 1, 1, 2], [0] * 6]
    assert selection.sizes.tolist() == [[2, 2, 1], [6, 0, 0]]
    assert selection.clustered.tolist() == [True, False]
    assert selection.consensus.tolist() == [0.4, keystone.select(CHUNKS, "first").consensus]


@pytest.mark.parametrize(
    "chunk",
    [
        np.full((4, 3), 2.5),
        np.full((4, 3), 2.5, np.float32),
        [[2.5] * 3] * 4,
        torch.full((4, 3), 2.5, dtype=torch.bfloat16),
        torch.full((4, 3), 2.5, requires_grad=True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_chunk_of_its_own(chunk, dtype):
    def make(round):
        return RuleResult(4, chunk=chunk)

    selection = keystone.select(torch.from_numpy(CHUNKS).to(dtype), make)
    assert selection.index == 4
    assert selection.synthesised is True
    assert selection.chunk.dtype is dtype
    assert (selection.chunk == 2.5).all()
    together = keystone.select(torch.from_numpy(np.stack([CHUNKS, CHUNKS])).to(dtype), make)
    assert together.chunk.shape == (2, 4, 3)
    assert (together.chunk == 2.5).all()


def test_a_chunk_of_its_own_in_some_rounds():
    def sometimes(round):
        return RuleResult(1, chunk=np.zeros((4, 3))) if round.row == 1 else 2

    chunks = np.stack([CHUNKS] * 3).astype(np.float32)
    selection = keystone.select(chunks, sometimes)
    assert selection.index.tolist() == [2, 1, 2]
    assert selection.synthesised is True
    assert selection.chunk.dtype == np.float32
    np.testing.assert_array_equal(selection.chunk, np.stack([chunks[0, 2], np.zeros((4, 3)), chunks[2, 2]]))


@pytest.mark.parametrize("index", [6, 99, -1])
def test_wrong_index(index):
    with pytest.raises(ValueError, match=f"a rule returned index {index}, but it was shown 6 candidates: 0 to 5"):
        keystone.select(CHUNKS, lambda shown: index)
    with pytest.raises(ValueError, match="it was shown 6 candidates"):
        keystone.select(CHUNKS, lambda shown: RuleResult(index))


@pytest.mark.parametrize(
    "answer", [None, 1.0, "1", (1,), [1, 2], True, np.bool_(True), np.float32(2), np.array([1, 2]), CHUNKS]
)
def test_wrong_answer(answer):
    with pytest.raises(TypeError, match=r"a rule must return an index or a keystone.RuleResult, not"):
        keystone.select(CHUNKS, lambda shown: answer)


@pytest.mark.parametrize("labels", [[0, 1], np.zeros((6, 1)), 3, np.zeros(7)])
def test_wrong_labels(labels):
    with pytest.raises(ValueError, match=r"a rule returned labels of shape .*, expected \(6,\)"):
        keystone.select(CHUNKS, lambda shown: RuleResult(0, labels=labels))


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (np.zeros((3, 4)), r"a rule made a chunk of shape \(3, 4\), expected \(4, 3\)"),
        (0.0, r"of shape \(\)"),
    ],
)
def test_wrong_chunk(chunk, message):
    with pytest.raises(ValueError, match=message):
        keystone.select(CHUNKS, lambda shown: RuleResult(0, chunk=chunk))


def test_errors_of_the_function_come_through():
    def broken(round):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        keystone.select(CHUNKS, broken)


def test_parameters_are_checked_before_anything_is_computed():
    def pick(round, which):
        return which

    assert keystone.select(CHUNKS, pick, which=4).index == 4
    with pytest.raises(
        TypeError, match=r"rule 'pick' cannot be called as pick\(round, …\): missing a required argument: 'which'"
    ):
        keystone.select(CHUNKS, pick)
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'whihc'"):
        keystone.select(CHUNKS, pick, which=1, whihc=4)
    with pytest.raises(TypeError, match="too many positional arguments"):
        keystone.select(CHUNKS, lambda: 0)


def test_other_callables():
    class Second:
        def __call__(self, round):
            return 1

    def pick(round, which):
        return which

    assert keystone.select(CHUNKS, Second()).rule == "Second"
    assert keystone.select(CHUNKS, functools.partial(pick, which=2)).index == 2
    assert keystone.select(CHUNKS, lambda shown: 0).rule == "<lambda>"


def test_a_function_that_does_what_a_rule_does():
    def medoid(round):
        return round.distances.sum(1).argmin()

    for metric in ("l2", "l1", "cosine"):
        chunks = np.random.default_rng(1).normal(size=(20, 9, 4, 3))
        theirs, ours = keystone.select(chunks, medoid, metric=metric), keystone.select(chunks, "medoid", metric=metric)
        assert theirs.index.tolist() == ours.index.tolist()
        np.testing.assert_array_equal(theirs.chunk, ours.chunk)
