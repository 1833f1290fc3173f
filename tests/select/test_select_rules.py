"""Every rule: small examples worked out by hand, independent re-computations, parameters."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from selection_oracle import KINDS, shape_of

import keystone_robotics as keystone
from keystone_robotics import RULES, ActionSpace, Round, RuleResult

NAMES = sorted(RULES)
MADE = ["mean", "cluster-mean", "trimmed-mean", "core-mean"]


def line(*values: float) -> np.ndarray:
    """Candidates of one step and one dimension."""
    return np.array(values, dtype=np.float64).reshape(-1, 1, 1)


def test_the_rules():
    assert NAMES == [
        "cluster-mean", "cluster-medoid", "coherent", "core-mean", "density", "first", "kde", "keystone", "mean", "medoid",
        "trimmed-mean",
    ]  # fmt: skip
    assert inspect.signature(keystone.select).parameters["rule"].default == "keystone"
    for name, rule in RULES.items():
        assert rule.name == name
        assert rule.__doc__
        assert rule.__dataclass_params__.frozen


def test_the_papers_numbers_are_the_defaults():
    rule = RULES["keystone"]()
    assert (rule.tau, rule.clusters, rule.iterations, rule.init) == (0.3, 2, 10, "random")


# --- keystone


def test_keystone_by_hand():
    """Sums of distances 10.4, 10.1, 10.0, 14.8, 15.2: medoid 2. Mean 2.08, gap 1.88; the fifth of ten distances is 4.8."""
    chunks = line(0, 0.1, 0.2, 5, 5.1)
    for init in ("farthest", "best"):
        selection = keystone.select(chunks, init=init)
        assert selection.spread == pytest.approx(1.88 / 4.8, rel=1e-6)
        assert selection.median_distance == pytest.approx(4.8)
        assert selection.clustered is True
        assert selection.labels.tolist() == [0, 0, 0, 1, 1]
        assert selection.sizes.tolist() == [3, 2]
        assert selection.consensus == 0.6
        assert selection.index == 1
    guarded = keystone.select(chunks, tau=0.4)
    assert (guarded.index, guarded.clustered, guarded.consensus) == (2, False, 0.6)
    assert guarded.labels.tolist() == [0] * 5
    assert guarded.sizes.tolist() == [5, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_guard_is_strict(dtype):
    """s < τ returns the medoid; s = τ does not."""
    chunks = line(0, 0.1, 0.2, 5, 5.1).astype(dtype)
    spread = keystone.select(chunks.astype(np.float64)).spread
    assert keystone.select(chunks, tau=spread).clustered
    assert keystone.select(chunks, tau=np.nextafter(spread, 0)).clustered
    assert not keystone.select(chunks, tau=np.nextafter(spread, 9)).clustered
    assert not keystone.select(chunks, tau=spread + 1e-9).clustered
    assert keystone.select(chunks, tau=-np.inf).clustered
    assert not keystone.select(chunks, tau=np.inf).clustered


def test_epsilon_keeps_equal_candidates_together():
    selection = keystone.select(line(3, 3, 3, 3))
    assert (selection.index, selection.spread, selection.median_distance, selection.clustered) == (0, 0.0, 0.0, False)


def test_the_median_is_the_lower_one():
    """Distances of 0, 1, 3, 7 are 1, 2, 3, 4, 6, 7."""
    assert keystone.select(line(0, 1, 3, 7)).median_distance == 3


def test_iterations_are_counted():
    chunks = line(0, 1, 2, 10, 11, 12)
    once = keystone.select(chunks, "cluster-medoid", init="first", iterations=1)
    assert once.labels.tolist() == [1, 0, 0, 0, 0, 0]  # from 0 and 1, only 0 is nearer to 0
    assert keystone.select(chunks, "cluster-medoid", init="first").labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_an_empty_cluster_keeps_its_centroid():
    """Both clusters begin at 0 and all go to the first, whose mean moves to 3; the second still waits at 0."""
    chunks = line(0, 0, 5, 5, 5)
    assert keystone.select(chunks, "cluster-medoid", init="first", iterations=1).sizes.tolist() == [5, 0]
    settled = keystone.select(chunks, "cluster-medoid", init="first")
    assert settled.labels.tolist() == [1, 1, 0, 0, 0]
    assert settled.index == 2


def test_ties_between_clusters():
    tighter = keystone.select(line(0, 3, 10, 11), "cluster-medoid", init="farthest")
    assert (tighter.labels.tolist(), tighter.index) == ([1, 1, 0, 0], 2)
    earlier = keystone.select(line(10, 1, 11, 0), "cluster-medoid", init="farthest")
    assert (earlier.labels.tolist(), earlier.index) == ([0, 1, 0, 1], 0)


def test_ties_between_candidates_go_to_the_lowest_index():
    assert keystone.select(line(1, 0, 1, 0), "medoid").index == 0
    assert keystone.select(line(5, 0.1, 0.3, -5), "medoid").index == 1
    assert keystone.select(line(1, 2), "keystone").index == 0
    square = np.array([[0.1, 0.7], [0.7, 0.1], [0.1, 0.1], [0.7, 0.7]])[:, None]
    assert keystone.select(square, "medoid").index == 0
    assert keystone.select(square[::-1], "medoid").index == 0


def test_farthest_start_by_hand():
    """0 and 9 are farthest apart, then 4 is farthest from both."""
    selection = keystone.select(line(4, 0, 9, 0.5, 8.5, 4.5, 0.2), "cluster-medoid", init="farthest", clusters=3)
    assert selection.labels.tolist() == [1, 0, 2, 0, 2, 1, 0]
    assert selection.sizes.tolist() == [3, 2, 2]
    assert selection.index == 6


def test_best_start_finds_what_a_bad_start_misses():
    """From 0 and 1 k-means stays in a poor split of three groups; the best of all starts does not."""
    chunks = line(0, 1, 20, 21, 22, 23, 40, 41)
    bad = keystone.select(chunks, "cluster-medoid", init="first", clusters=3)
    best = keystone.select(chunks, "cluster-medoid", init="best", clusters=3)
    assert best.sizes.tolist() == [4, 2, 2]
    assert best.labels.tolist() == [1, 1, 0, 0, 0, 0, 2, 2]
    assert bad.sizes.tolist() != best.sizes.tolist()


@pytest.mark.parametrize("clusters", [5, 6, 50])
def test_more_clusters_than_candidates(clusters):
    selection = keystone.select(line(0, 1, 5, 9, 20), "cluster-medoid", clusters=clusters)
    assert selection.sizes.tolist() == [1] * 5  # there cannot be more
    assert selection.index == 0
    assert selection.consensus == pytest.approx(0.2)


def test_one_cluster_is_the_medoid():
    chunks = line(0, 1, 5, 9, 20)
    selection = keystone.select(chunks, "cluster-medoid", clusters=1)
    assert (selection.index, selection.clustered) == (keystone.select(chunks, "medoid").index, False)


# --- medoid, density, first


def test_medoid_by_metric():
    """Distances that can be checked by hand."""
    chunks = np.array([[3.0, 0.0], [1.0, 1.0], [0.0, 2.5]])[:, None]
    distances = {
        "l2": [[0, 5**0.5, 15.25**0.5], [5**0.5, 0, 3.25**0.5], [15.25**0.5, 3.25**0.5, 0]],
        "l1": [[0, 3, 5.5], [3, 0, 2.5], [5.5, 2.5, 0]],
        "cosine": [[0, 1 - 0.5**0.5, 1], [1 - 0.5**0.5, 0, 1 - 0.5**0.5], [1, 1 - 0.5**0.5, 0]],
    }
    for metric, matrix in distances.items():
        seen = []

        def look(round: Round, seen=seen) -> int:
            seen.append(round.distances)
            return 0

        keystone.select(chunks, look, metric=metric)
        np.testing.assert_allclose(seen[0], matrix, atol=1e-12)
        assert keystone.select(chunks, "medoid", metric=metric).index == np.sum(matrix, 1).argmin()
        assert keystone.select(chunks, "medoid", metric=metric).median_distance == pytest.approx(np.unique(matrix)[-2])


def test_density_by_hand():
    """Two nearest neighbours: 0 has 4 and 5, 4 has 1 and 2, 5 has 1 and 1, 6 has 1 and 2, 20 has 14 and 15."""
    chunks = line(0, 4, 5, 6, 20)
    assert keystone.select(chunks, "density", neighbours=2).index == 2
    assert keystone.select(chunks, "density", neighbours=1).index == 1
    assert keystone.select(chunks, "density", neighbours=99).index == keystone.select(chunks, "medoid").index
    assert keystone.select(line(0, 10, 11), "density").index == 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(2, 30), st.integers(0, 999), st.one_of(st.none(), st.integers(1, 40)))
def test_density_recomputed(k, seed, neighbours):
    chunks = np.random.default_rng(seed).normal(size=(k, 3, 2))
    flat = chunks.reshape(k, 6)
    count = min(neighbours or k // 2 + 1, k - 1)
    scores = [sorted(np.linalg.norm(flat[i] - flat[j]) for j in range(k) if j != i)[:count] for i in range(k)]
    expected = np.mean(scores, 1).astype(np.float32).argmin()
    assert keystone.select(chunks, "density", neighbours=neighbours).index == expected


def test_first_is_the_first():
    chunks = np.random.default_rng(0).normal(size=(5, 3, 2))
    selection = keystone.select(chunks, "first")
    assert (selection.index, selection.rule, selection.clustered) == (0, "first", False)
    chunks[[0, 1], 2, 1] = np.nan, np.inf
    with pytest.warns(RuntimeWarning, match="dropped 2 of 5"):
        assert keystone.select(chunks, "first").index == 2


# --- kde


def densities(position, angle, opening, h):
    return -0.5 * ((position / h) ** 2 + (angle / (5 * h)) ** 2 + (opening / (20 * h)) ** 2)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(2, 40), st.integers(0, 999), st.sampled_from([0.05, 0.3, 2.0]), st.sampled_from([0.0, 100.0]))
def test_kde_recomputed(k, seed, h, offset):
    """Position, rotation angle and gripper of the last step that counts, with bandwidths h, 5h, 20h."""
    rng = np.random.default_rng(seed)
    chunks = 0.3 * rng.normal(size=(k, 6, 8)) + offset * np.array([1, 1, 1, 0, 0, 0, 0, 0])
    space = ActionSpace(dims=7, steps=4, rotation={"axis-angle": 3}, gripper={6: 0.1}, scale={0: 2.0, 6: 0.5})
    last = chunks[:, 3]
    turns = Rotation.from_rotvec(last[:, 3:6])
    position = (last[:, None, :3] - last[None, :, :3]) / np.array([2.0, 1, 1])
    angle = np.array([[(a.inv() * b).magnitude() for b in turns] for a in turns])
    opening = ((last[:, None, 6] > 0.1).astype(float) - (last[None, :, 6] > 0.1)) / 0.5
    exponents = densities(np.linalg.norm(position, axis=2), angle, opening, h)
    np.fill_diagonal(exponents, -np.inf)
    expected = np.logaddexp.reduce(exponents, axis=1).astype(np.float32).argmax()
    assert keystone.select(chunks, "kde", space, bandwidth=h).index == expected


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(2, 40), st.integers(0, 999), st.sampled_from([None, 0.2, 1.0]))
def test_kde_of_whole_chunks_recomputed(k, seed, bandwidth):
    chunks = np.random.default_rng(seed).normal(size=(k, 3, 2))
    distances = np.linalg.norm((chunks[:, None] - chunks[None]).reshape(k, k, 6), axis=2)
    upper = np.sort(distances[np.triu_indices(k, 1)])
    exponents = -0.5 * (distances / ((bandwidth or 0.5) * upper[(len(upper) - 1) // 2])) ** 2
    np.fill_diagonal(exponents, -np.inf)
    expected = np.logaddexp.reduce(exponents, axis=1).astype(np.float32).argmax()
    assert keystone.select(chunks, "kde", whole=True, bandwidth=bandwidth).index == expected


def test_kde_looks_at_the_last_step_that_counts():
    chunks = np.zeros((4, 3, 1))
    chunks[:, 0, 0], chunks[:, 1, 0], chunks[:, 2, 0] = [0, 5, 9, 13], [5, 0, 0.04, 0.09], [0.3, 9, 0.02, 0]
    assert keystone.select(chunks, "kde", ActionSpace(steps=2)).index == 2
    assert keystone.select(chunks, "kde").index == 2
    assert keystone.select(chunks[[0, 1, 3]], "kde").index == 0
    assert (
        keystone.select(chunks, "kde", ActionSpace(steps=[1, 0])).index == keystone.select(chunks[:, :1], "kde").index
    )


def test_kde_far_from_zero():
    """K over 25: distances through a product of the raw positions would be rounding."""
    noise = 1e-3 * np.random.default_rng(0).normal(size=(32, 1, 3))
    assert (
        keystone.select(noise, "kde", bandwidth=1e-3).index == keystone.select(noise + 1e5, "kde", bandwidth=1e-3).index
    )


def test_kde_of_duplicates_and_of_strangers():
    assert keystone.select(line(0, 7, 7, 7, 9), "kde", whole=True).index == 1
    assert keystone.select(line(0, 1e6, 3e6, 3.5e6), "kde").index == 2  # all kernels vanish; logarithms do not
    assert keystone.select(np.zeros((4, 2, 3)), "kde").index == 0
    assert keystone.select(np.zeros((4, 2, 3)), "kde", ActionSpace(rotation={"axis-angle": 0})).index == 0


# --- coherent


def coherent_recomputed(chunks, previous, weak, decay, share, steps):
    """Bidirectional decoding for plain chunks, written down once more."""
    n, length, _ = chunks.shape
    kept, backward = list(range(n)), np.zeros(n)
    if previous is not None:
        shared = min(length, len(previous))
        weights = decay ** np.arange(shared)
        apart = np.linalg.norm(chunks[:, :shared] - previous[:shared], axis=2)
        backward = (apart * weights).sum(1) / weights.sum()
        kept = sorted(kept, key=lambda i: (backward[i], i))[: max(1, int(n * share))]
    flat = chunks[:, :steps].reshape(n, -1)
    scores = []
    for i in kept:
        score = backward[i]
        others = sorted(np.linalg.norm(flat[i] - flat[j]) for j in kept if j != i)
        if others:
            score += np.mean(others[: len(kept) // 2 + 1]) / np.sqrt(steps)
        if weak is not None:
            far = sorted(np.linalg.norm(flat[i] - w) for w in weak[:, :steps].reshape(len(weak), -1))
            score -= np.mean(far[: len(kept) // 2 + 1]) / np.sqrt(steps)
        scores.append(score)
    return kept[int(np.argmin(np.float32(scores)))]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.integers(1, 20), st.integers(0, 999), st.booleans(), st.booleans(), st.sampled_from([0.5, 1.0]),
    st.sampled_from([1 / 3, 0.7, 1.0]), st.integers(1, 6),
)  # fmt: skip
def test_coherent_recomputed(k, seed, with_previous, with_weak, decay, share, overlap):
    rng = np.random.default_rng(seed)
    chunks = rng.normal(size=(k, 4, 2))
    previous = rng.normal(size=(overlap, 2)) if with_previous else None
    weak = rng.normal(size=(5, 4, 2)) if with_weak else None
    params = {"previous": previous, "weak": weak, "decay": decay, "share": share}
    expected = coherent_recomputed(chunks, previous, weak, decay, share, 4)
    assert keystone.select(chunks, "coherent", **params).index == expected
    tensors = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in params.items()}
    assert keystone.select(torch.from_numpy(chunks), "coherent", **tensors).index == expected


def test_coherent_by_hand():
    chunks = line(0, 1, 2, 9, 10, 11)
    assert keystone.select(chunks, "coherent").index == 2  # the four nearest of 2 are at 1, 2, 7, 8; of 1 at 1, 1, 8, 9
    assert keystone.select(chunks, "coherent", previous=[[10.0]]).index == 4
    assert keystone.select(chunks, "coherent", previous=[[2.0]], share=0.1).index == 2
    assert keystone.select(chunks, "coherent", weak=line(0, 1, 2, 1.5)).index in (3, 4, 5)


def test_coherent_in_a_batch():
    chunks = np.stack([line(0, 1, 2, 9, 10, 11)] * 3)
    previous = np.array([0.0, 10.0, 2.0]).reshape(3, 1, 1)
    expected = [keystone.select(one, "coherent", previous=p).index for one, p in zip(chunks, previous)]
    assert keystone.select(chunks, "coherent", previous=previous).index.tolist() == expected
    assert len(set(expected)) > 1
    shared = keystone.select(chunks, "coherent", previous=previous[1])
    assert shared.index.tolist() == [expected[1]] * 3
    weak = np.stack([line(0, 1, 2), line(9, 10, 11), line(-5, -6, -7)])
    expected = [keystone.select(one, "coherent", weak=w).index for one, w in zip(chunks, weak)]
    assert keystone.select(chunks, "coherent", weak=weak).index.tolist() == expected


def test_coherent_compares_in_the_space():
    """A quaternion and its negative are the same plan, and padding is none."""
    rng = np.random.default_rng(0)
    chunks = rng.normal(size=(6, 3, 6))
    previous = chunks[4].copy()
    previous[:, :4] *= -1
    previous[:, 4:] += 100
    space = ActionSpace(dims=4, rotation={"quaternion-xyzw": 0})
    assert keystone.select(chunks, "coherent", space, previous=previous, share=0.01).index == 4
    late = ActionSpace(dims=4, rotation={"quaternion-xyzw": 0}, steps=range(1, 3))
    previous[0] = 7.0  # before the window
    assert keystone.select(chunks, "coherent", late, previous=previous, share=0.01).index == 4
    assert keystone.select(chunks, "coherent", late, previous=previous[:1]).index in range(6)  # nothing overlaps


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"previous": np.zeros((2, 4, 2))}, "previous is a batch of 2, the candidates are 3 rounds"),
        ({"previous": np.zeros((4, 4, 2))}, "previous is a batch of 4, the candidates are 3 rounds"),
        ({"weak": np.zeros((2, 5, 4, 2))}, "weak is a batch of 2"),
        ({"previous": np.zeros(4)}, r"previous has shape \(4,\): expected 2 axes, or 3 for a batch"),
        ({"weak": np.zeros((4, 2))}, r"weak has shape \(4, 2\): expected 3 axes, or 4 for a batch"),
        ({"previous": np.zeros((4, 3))}, "previous has 3 dimensions, the candidates have 2"),
        ({"weak": np.zeros((5, 3, 2))}, r"weak has chunks of shape \(3, 2\), the candidates \(4, 2\)"),
        ({"previous": np.full((4, 2), np.nan)}, "previous holds a NaN or an infinity"),
        ({"weak": torch.full((5, 4, 2), torch.inf)}, "weak holds a NaN or an infinity"),
        ({"decay": 0.0}, "decay=0.0: expected a number above 0, at most 1"),
        ({"decay": 1.5}, "decay=1.5"),
        ({"share": -1}, "share=-1"),
    ],
)
def test_coherent_refuses(params, message):
    with pytest.raises(ValueError, match=message):
        keystone.select(np.zeros((3, 6, 4, 2)), "coherent", **params)


# --- rules that make a chunk


def test_means_by_hand():
    assert keystone.select(line(0, 1, 5), "mean").chunk.item() == 2
    assert keystone.select(line(0, 1, 2, 3, 50, 51), "trimmed-mean").chunk.item() == 2  # medoid 2, then 1 and 3
    assert keystone.select(line(0, 1, 2, 3, 50, 51), "trimmed-mean", share=0.1).chunk.item() == 2
    assert keystone.select(line(0, 1, 2, 3, 50, 51), "trimmed-mean", share=1.0).chunk.item() == pytest.approx(107 / 6)
    # the medoid of all is 10; the tightest three are 29, 30 and 31
    assert keystone.select(line(0, 5, 10, 29, 30, 31), "core-mean").chunk.item() == 30
    assert keystone.select(line(0, 5, 10, 29, 30, 31), "core-mean", share=0.1).chunk.item() == 0
    assert keystone.select(line(0, 1, 2, 9), "core-mean", share=1.0).chunk.item() == 3
    selection = keystone.select(line(0, 1, 2, 50, 51), "cluster-mean")
    assert (selection.chunk.item(), selection.sizes.tolist(), selection.labels.tolist()) == (1, [3, 2], [0, 0, 0, 1, 1])
    one_group = keystone.select(line(0, 1, 2, 50, 51), "cluster-mean", tau=np.inf)
    assert (one_group.chunk.item(), one_group.clustered) == (pytest.approx(20.8), False)


def test_core_mean_stays_in_a_mode_where_the_medoid_of_all_lies_between_two():
    """Two modes of equal size and one candidate halfway: the medoid is that one, and no mode."""
    modes = line(*(-10 + 0.1 * np.arange(8)), *(10 + 0.3 * np.arange(8)), 0.0)
    assert abs(keystone.select(modes, "medoid").chunk.item()) < 1e-9
    assert keystone.select(modes, "core-mean").chunk.item() == pytest.approx(-9.65, abs=1.2)
    assert keystone.select(modes, "core-mean", share=8 / 17).chunk.item() == pytest.approx(-9.65)


@pytest.mark.parametrize("rule", MADE)
@pytest.mark.parametrize("metric", ["l2", "l1", "cosine"])
def test_made_chunks_are_marked_and_name_the_nearest(rule, metric):
    for case in range(20):
        chunks = np.random.default_rng(case).normal(size=(7, 3, 2)) + 2
        selection = keystone.select(chunks, rule, metric=metric)
        assert selection.synthesised is True
        assert not any(np.array_equal(selection.chunk, chunk) for chunk in chunks)
        flat, made = chunks.reshape(7, 6), selection.chunk.reshape(6)
        distances = {
            "l2": np.linalg.norm(flat - made, axis=1),
            "l1": np.abs(flat - made).sum(1),
            "cosine": 1 - flat @ made / np.linalg.norm(flat, axis=1) / np.linalg.norm(made),
        }[metric]
        assert selection.index == distances.argmin()


@pytest.mark.parametrize("rule", sorted(set(NAMES) - set(MADE)))
def test_other_chunks_are_not_marked(rule):
    assert keystone.select(np.random.default_rng(0).normal(size=(5, 3, 2)), rule).synthesised is False


@pytest.mark.parametrize("rule", MADE)
def test_made_chunks_average_what_does_not_count_too(rule):
    chunks = np.random.default_rng(0).normal(size=(2, 3, 4)) * [1, 1, 50, 50]
    selection = keystone.select(np.concatenate([chunks, chunks]), rule, ActionSpace(dims=2, steps=1), **one_group(rule))
    np.testing.assert_allclose(selection.chunk, chunks.mean(0))


def one_group(rule: str) -> dict:
    return {"cluster-mean": {"tau": np.inf}, "trimmed-mean": {"share": 1.0}, "core-mean": {"share": 1.0}, "mean": {}}[
        rule
    ]


@pytest.mark.parametrize("rule", MADE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_made_chunks_keep_type_and_dtype(rule, dtype):
    chunks = torch.randn(2, 5, 3, 2).to(dtype)
    for candidates in (chunks, chunks[0], list(chunks[0])):
        made = keystone.select(candidates, rule).chunk
        assert isinstance(made, torch.Tensor)
        assert made.dtype is dtype
    if dtype is not torch.bfloat16:
        made = keystone.select(chunks.numpy(), rule).chunk
        assert isinstance(made, np.ndarray)
        assert made.dtype == chunks.numpy().dtype


@pytest.mark.parametrize("rule", MADE)
def test_grippers_vote(rule):
    """Three of five close at the first step, three of five open at the second; a tie counts as above."""
    chunks = np.zeros((5, 2, 2))
    chunks[:, 0, 1] = [0.0, 0.1, 0.2, 0.9, 1.0]
    chunks[:, 1, 1] = [0.9, 0.8, 0.7, 0.1, 0.0]
    made = keystone.select(chunks, rule, ActionSpace(gripper={1: 0.5}), **one_group(rule)).chunk
    np.testing.assert_allclose(made[:, 1], [0.1, 0.8])
    logits = keystone.select(
        np.log((chunks + 0.01) / (1.01 - chunks)), rule, ActionSpace(gripper={1: "logit"}), **one_group(rule)
    )
    assert logits.chunk[0, 1] < -1
    assert logits.chunk[1, 1] > 1
    tie = keystone.select(chunks[[0, 1, 3, 4]], rule, ActionSpace(gripper={1: 0.5}), **one_group(rule)).chunk
    assert tie[0, 1] == pytest.approx(0.95)


@pytest.mark.parametrize("rule", MADE)
@pytest.mark.parametrize("layout", ["axis-angle", "quaternion-xyzw", "quaternion-wxyz", "6d", "euler-xyz", "euler-ZYX"])
def test_rotations_are_averaged_as_rotations(rule, layout):
    from test_select_rotations import written

    rng = np.random.default_rng(0)
    turns = Rotation.from_rotvec([0, 0, np.pi - 0.01]) * Rotation.from_rotvec(0.2 * rng.normal(size=(6 * 3, 3)))
    values = written(layout, turns).reshape(6, 3, -1)
    if layout.startswith("quaternion"):
        values = values * rng.choice([-1, 1], size=(6, 1, 1))
    chunks = np.concatenate([rng.normal(size=(6, 3, 1)), values], 2)
    selection = keystone.select(chunks, rule, ActionSpace(rotation={layout: 1}), **one_group(rule))
    means = [turns[list(range(step, 18, 3))].mean() for step in range(3)]
    made = selection.chunk[:, 1:]
    if layout == "axis-angle":
        back = Rotation.from_rotvec(made)
    elif layout.startswith("quaternion"):
        back = Rotation.from_quat(made if layout.endswith("xyzw") else made[:, [1, 2, 3, 0]])
        assert ((made * values[selection.index]).sum(1) > 0).all()  # the sign the nearest candidate uses
        np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1)
    elif layout == "6d":
        first, second = made[:, :3], made[:, 3:]
        back = Rotation.from_matrix(np.stack([first, second, np.cross(first, second)], 2))
    else:
        back = Rotation.from_euler(layout.removeprefix("euler-"), made)
    for step, mean in enumerate(means):
        assert (back[step].inv() * mean).magnitude() < 1e-6
    np.testing.assert_allclose(selection.chunk[:, 0], chunks[:, :, 0].mean(0))


@pytest.mark.parametrize("rule", MADE)
@pytest.mark.parametrize("turn", [0.0, np.pi, 3.5, -20.0])
def test_angles_are_averaged_on_the_turn_that_they_are_on(rule, turn):
    """Near ±π a yaw may be written on either side; a joint beyond π must not be sent back by a whole turn."""
    angles = turn + 0.1 * np.random.default_rng(0).normal(size=(6, 3, 1))
    made = keystone.select(angles, rule, ActionSpace(rotation={"angle": 0}), **one_group(rule)).chunk
    np.testing.assert_allclose(made, angles.mean(0), atol=1e-3)
    wrapped = np.angle(np.exp(1j * angles))
    yaw = keystone.select(wrapped, rule, ActionSpace(rotation={"angle": 0}), **one_group(rule)).chunk
    np.testing.assert_allclose(np.exp(1j * yaw), np.exp(1j * made), atol=1e-6)


@pytest.mark.parametrize("rule", MADE)
@pytest.mark.parametrize("layout", ["quaternion-xyzw", "6d"])
def test_padded_steps_that_are_no_rotation(rule, layout):
    """A policy may fill the steps after its horizon with zeros, which are no quaternion."""
    chunks = np.random.default_rng(0).normal(size=(5, 4, 7))
    chunks[:, 2:] = 0
    selection = keystone.select(chunks, rule, ActionSpace(steps=2, rotation={layout: 0}), **one_group(rule))
    assert np.isfinite(selection.chunk).all()
    assert (selection.chunk[2:] == 0).all()
    assert np.linalg.norm(selection.chunk[0, :4]) > 0.1


# --- parameters

PARAMETERS = {name: [field.name for field in dataclasses.fields(rule)] for name, rule in RULES.items()}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("keystne", "keystone"),
        ("mediod", "medoid"),
        ("KDE", "kde"),
        ("cluster_medoid", "cluster-medoid"),
        ("", None),
        ("xyz", None),
    ],
)
def test_unknown_rule_suggests_the_nearest(name, nearest):
    hint = f"did you mean '{nearest}'" if nearest else "known are cluster-mean, cluster-medoid"
    with pytest.raises(ValueError, match=f"unknown rule '{name}': .*{hint}"):
        keystone.select(np.zeros((3, 2, 2)), name)


@pytest.mark.parametrize("rule", [None, 3, 0.5, ["keystone"], b"keystone"])
def test_something_else_for_a_rule(rule):
    with pytest.raises(TypeError, match="expected a name or a function"):
        keystone.select(np.zeros((3, 2, 2)), rule)


@pytest.mark.parametrize("rule", NAMES)
def test_unknown_parameter_suggests_the_nearest(rule):
    with pytest.raises(TypeError, match=f"rule '{rule}' has no parameter 'nonsense'"):
        keystone.select(np.zeros((3, 2, 2)), rule, nonsense=1)
    for name in PARAMETERS[rule]:
        with pytest.raises(TypeError, match=f"no parameter '{name}s': did you mean '{name}'"):
            keystone.select(np.zeros((3, 2, 2)), rule, **{name + "s": 1})
    if not PARAMETERS[rule]:
        with pytest.raises(TypeError, match="it has none"):
            keystone.select(np.zeros((3, 2, 2)), rule, tau=1)


WHOLE = ["two", 2.0, None, 0, -1, True, np.nan]
NUMBER = ["low", None, True, np.nan, [0.3]]
CLUSTERING = ("keystone", "cluster-mean", "cluster-medoid")
WRONG = [
    *((rule, name, value) for rule in CLUSTERING for name in ("clusters", "iterations") for value in WHOLE),
    *((rule, "tau", value) for rule in ("keystone", "cluster-mean") for value in NUMBER),
    *(("density", "neighbours", value) for value in WHOLE if value is not None),
    *(("kde", "bandwidth", value) for value in [*NUMBER, 0, -1.0] if value is not None),
    *(("kde", "whole", value) for value in ("yes", 1, None)),
    *((rule, "share", value) for rule in ("trimmed-mean", "core-mean") for value in [*NUMBER, 0, -0.5, 1.01]),
    *(("coherent", name, value) for name in ("decay", "share") for value in [*NUMBER, 0, 1.01]),
]


@pytest.mark.parametrize(("rule", "name", "value"), WRONG)
def test_wrong_parameters(rule, name, value):
    with pytest.raises(ValueError, match=f"^{name}=.*: expected"):
        keystone.select(np.zeros((3, 2, 2)), rule, **{name: value})


@pytest.mark.parametrize("rule", ["keystone", "cluster-mean", "cluster-medoid"])
def test_unknown_init_and_metric(rule):
    with pytest.raises(ValueError, match="unknown init 'farthst': did you mean 'farthest'"):
        keystone.select(np.zeros((3, 2, 2)), rule, init="farthst")
    with pytest.raises(ValueError, match="unknown metric 'cosinus': did you mean 'cosine'"):
        keystone.select(np.zeros((3, 2, 2)), rule, metric="cosinus")


def test_numbers_of_numpy_are_numbers():
    chunks = np.random.default_rng(0).normal(size=(6, 2, 2))
    assert (
        keystone.select(chunks, tau=np.float32(0.25), clusters=np.int64(3)).index
        == keystone.select(chunks, tau=0.25, clusters=3).index
    )
    assert (
        keystone.select(chunks, "density", neighbours=np.int32(2)).index
        == keystone.select(chunks, "density", neighbours=2).index
    )


def test_a_rule_with_its_parameters():
    chunks = line(0, 0.1, 0.2, 5, 5.1)
    assert keystone.select(chunks, RULES["keystone"](tau=0.4)).index == 2
    assert keystone.select(chunks, RULES["keystone"](tau=0.4)).rule == "keystone"
    assert keystone.select(chunks, RULES["keystone"], tau=0.4).index == 2
    with pytest.raises(TypeError, match="has its parameters already"):
        keystone.select(chunks, RULES["keystone"](), tau=0.4)
    with pytest.raises(TypeError, match="no parameter 'tua': did you mean 'tau'"):
        keystone.select(chunks, RULES["keystone"], tua=0.4)


def test_the_registry_is_a_plain_dict(monkeypatch):
    """A new entry is a new rule, and a replaced one is replaced at once."""

    @dataclasses.dataclass(frozen=True)
    class Last(RULES["first"]):
        name = "last"
        back: int = 1

        def select_round(self, round):
            return len(round.chunks) - self.back

    chunks = np.zeros((4, 1, 1))
    monkeypatch.setitem(RULES, "last", Last)
    assert keystone.select(chunks, "last").index == 3
    assert keystone.select(chunks, "last", back=2).index == 2
    assert keystone.select(chunks, "first").index == 0
    monkeypatch.setitem(RULES, "first", Last)
    assert keystone.select(chunks, "first").index == 3


# --- degenerate rounds, for every rule


@pytest.mark.parametrize("rule", NAMES)
@pytest.mark.parametrize("metric", ["l2", "l1", "cosine"])
def test_one_candidate_is_returned(rule, metric):
    for shape in ((1, 5, 3), (1, 1, 1)):
        chunk = np.random.default_rng(0).normal(size=shape)
        selection = keystone.select(chunk, rule, metric=metric)
        assert (selection.index, selection.spread, selection.median_distance, selection.consensus) == (0, 0, 0, 1)
        assert selection.dispersion == 0
        np.testing.assert_allclose(selection.chunk, chunk[0], rtol=1e-15)
        assert selection.labels.tolist() == [0]


@pytest.mark.parametrize("rule", NAMES)
def test_one_candidate_is_bit_for_bit_the_original(rule):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        chunk = torch.randn(1, 5, 3).to(dtype)
        assert torch.equal(keystone.select(chunk, rule).chunk, chunk[0])
        assert torch.equal(keystone.select(chunk[None], rule).chunk, chunk)


@pytest.mark.parametrize("rule", NAMES)
@pytest.mark.parametrize(
    ("metric", "value"), [("l2", 0.0), ("l2", 100.1), ("l1", 1e-30), ("cosine", -3.7), ("cosine", 0.0)]
)
def test_equal_candidates(rule, metric, value):
    selection = keystone.select(np.full((6, 3, 2), value), rule, metric=metric)
    assert selection.index == 0
    assert (selection.spread, selection.median_distance, selection.dispersion) == (0, 0, 0)
    assert selection.clustered or selection.consensus == 1
    np.testing.assert_allclose(selection.chunk, np.full((3, 2), value), rtol=1e-14)


@pytest.mark.parametrize("rule", NAMES)
@pytest.mark.parametrize(("k", "shape"), [(1, (1, 7)), (2, (9, 1)), (3, (1, 1)), (5, (9, 1))])
def test_small_shapes(rule, k, shape):
    for case, kind in enumerate(KINDS):
        rng = np.random.default_rng(case)
        chunks = shape_of(kind, k, shape[0] * shape[1], rng).reshape(k, *shape)
        selection = keystone.select(chunks, rule)
        assert 0 <= selection.index < k
        assert selection.sizes.sum() == k
        assert np.bincount(selection.labels).tolist() == [size for size in selection.sizes.tolist() if size]
        assert np.isfinite(selection.chunk).all()
        if not selection.synthesised:
            assert selection.labels[selection.index] == 0


def test_a_rule_result_has_three_fields():
    assert RuleResult(1) == RuleResult(index=1, labels=None, chunk=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        RuleResult(1).index = 2
