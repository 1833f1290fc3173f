"""The paper's rule against the plain float64 oracle, on random rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from selection_oracle import KINDS, judge, shape_of

import keystone_robotics as keystone
from keystone_robotics.select import engine

DTYPES = (torch.float32, torch.bfloat16, torch.float32, torch.float64)


def random_round(case: int, largest_k: int = 64) -> torch.Tensor:
    """(K, T, D) candidates; spread 1 to 1e-3, offset 0 to 100, every kind of geometry and dtype in turn."""
    rng = np.random.default_rng(case)
    k, steps, dims = rng.integers(1, largest_k + 1), rng.integers(1, 5), rng.integers(1, 5)
    numbers = shape_of(KINDS[case % len(KINDS)], k, steps * dims, rng)
    offset = rng.choice([0.0, 1.0, 10.0, 100.0])
    values = offset + 10 ** rng.uniform(-3, 0) * numbers
    return torch.from_numpy(values).reshape(k, steps, dims).to(DTYPES[rng.integers(4)])


def disagreements(cases: range, largest_k: int = 64, **params) -> list[int]:
    wrong = []
    for case in cases:
        candidates = random_round(case, largest_k)
        rows = candidates.double().numpy()
        if params.get("metric") == "cosine":  # a chunk of zeros has no direction
            candidates, rows = candidates[np.abs(rows).any((1, 2))], rows[np.abs(rows).any((1, 2))]
            if not len(rows):
                continue
        selection = keystone.select(candidates, seed=case, **params)
        verdict = judge(rows, seed=case, **params)
        alike = (
            selection.index == verdict.index
            and selection.labels.tolist() == verdict.labels
            and selection.sizes.tolist() == verdict.sizes
            and selection.clustered is verdict.clustered
            and math.isclose(selection.spread, verdict.spread, rel_tol=1e-4, abs_tol=1e-4)
            and math.isclose(selection.median_distance, verdict.median, rel_tol=1e-5, abs_tol=1e-12)
        )
        if not alike:
            wrong.append(case)
    return wrong


def test_a_thousand_rounds():
    wrong = disagreements(range(1_000))
    assert len(wrong) <= 1, wrong


def test_the_random_rounds_use_both_branches():
    """A thousand rounds that all took the guard's branch would prove nothing about k-means."""
    clustered = [keystone.select(random_round(case), seed=case).clustered for case in range(500)]
    assert 0.2 < np.mean(clustered) < 0.8


def test_without_numba(monkeypatch):
    monkeypatch.setattr(engine, "compiled_kernel", lambda: None)
    wrong = disagreements(range(10_000, 10_400))
    assert len(wrong) <= 1, wrong


@pytest.mark.parametrize(("metric", "clusters"), [("l1", 2), ("l1", 4), ("cosine", 2), ("cosine", 3)])
def test_metrics(metric, clusters):
    assert not disagreements(range(20_000, 20_200), metric=metric, clusters=clusters)


@pytest.mark.parametrize(("init", "clusters"), [("random", 3), ("first", 2), ("farthest", 2), ("farthest", 4)])
def test_initialisations(init, clusters):
    assert not disagreements(range(30_000, 30_200), init=init, clusters=clusters, tau=0.1)


@pytest.mark.parametrize(("metric", "clusters"), [("l2", 2), ("cosine", 4)])
def test_best_initialisation(metric, clusters):
    assert not disagreements(range(40_000, 40_100), 24, init="best", clusters=clusters, tau=0.1, metric=metric)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_few_iterations(iterations):
    assert not disagreements(range(50_000, 50_200), iterations=iterations, tau=0.0)


@pytest.mark.parametrize("k", [25, 26, 32, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_close_candidates_far_from_zero(k, dtype):
    """`torch.cdist` goes through the product of the raw candidates from K = 26 on, and loses these distances."""
    naive_wrong = 0
    for case in range(25):
        noise = np.random.default_rng(case).normal(size=(k, 20, 7))
        candidates = torch.from_numpy(100 + 1e-3 * noise).to(dtype)
        verdict = judge(candidates.double().numpy(), seed=case)
        assert keystone.select(candidates, seed=case).index == verdict.index
        flat = candidates.float().flatten(1)
        distances = torch.cdist(flat, flat, compute_mode="use_mm_for_euclid_dist")
        naive_wrong += int(distances.sum(1).argmin()) != verdict.index
    assert naive_wrong > 12, "the trap is not one: these candidates are easy"


@pytest.mark.parametrize("path", ["kernel", "numpy"])
@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_close_float32_candidates_keep_their_digits(path, metric, monkeypatch):
    """Bringing float32 rows to unit length in float32 rounded away the differences."""
    if path == "numpy":
        monkeypatch.setattr(engine, "compiled_kernel", lambda: None)
    for case in range(300):
        noise = np.random.default_rng(case).normal(size=(16, 10, 7))
        candidates = (100 + 1e-3 * noise).astype(np.float32)
        assert keystone.select(candidates, seed=case, metric=metric).index == judge(candidates, case, metric).index


@pytest.mark.parametrize("path", ["kernel", "numpy"])
def test_scaled_float32_candidates_keep_their_digits(path, monkeypatch):
    """Dividing by the scale in float32 rounded away the differences of candidates far from zero."""
    if path == "numpy":
        monkeypatch.setattr(engine, "compiled_kernel", lambda: None)
    scale = np.array([0.3, 0.7, 1.1, 0.9, 0.13, 0.17, 0.019])
    space = keystone.ActionSpace(scale=scale)
    for case in range(200):
        noise = np.random.default_rng(case).normal(size=(16, 10, 7))
        candidates = (100 + 1e-3 * noise).astype(np.float32)
        verdict = judge(candidates.astype(np.float64) / scale, case)
        assert keystone.select(candidates, space=space, seed=case).index == verdict.index


def test_first_initialisation_does_not_favour_the_first_candidate():
    """The authors' code starts from the first candidates and gives ties to the first cluster: candidate 0 of 4 wins more
    than half of the time. Here the tighter of two equal clusters wins, so that the start hardly matters."""
    clouds = [np.random.default_rng(case).normal(size=(4, 5, 7)) for case in range(400)]
    for init in ("first", "random", "farthest", "best"):
        share = np.mean([keystone.select(cloud, init=init, seed=case).index == 0 for case, cloud in enumerate(clouds)])
        assert 0.25 < share < 0.42, init  # a quarter, and a little: of a cluster of two the lower index is taken
        assert all(keystone.select(cloud[:2], init=init, seed=3).index == 0 for cloud in clouds[:50])


def test_a_mean_on_the_medoid_is_one_group():
    """Duplicates make the median 0, so that rounding in the gap, over 1e-8, used to look like two groups."""
    rng = np.random.default_rng(0)
    for case in range(300):
        v, w = rng.normal(size=(2, 3)).astype(np.float32) * np.float32(rng.choice([1, 10, 100]))
        if case % 2:
            around = [v, -v]
        else:  # rounded, so that the third is exact
            v, w = np.round(v * 64) / 64, np.round(w * 64) / 64
            around = [v, w, -(v + w)]
        chunks = np.array([0 * v] * (len(around) + rng.integers(1, 6)) + around)[:, None]
        chunks = chunks[rng.permutation(len(chunks))].astype(np.float32 if case % 4 < 2 else np.float64)
        selection = keystone.select(chunks)
        assert not selection.clustered
        assert selection.spread == 0


@pytest.mark.parametrize("path", ["kernel", "numpy"])
@pytest.mark.parametrize("copies", [3, 7, 49])
def test_a_point_on_two_centroids_belongs_to_the_first(path, copies, monkeypatch):
    """Both clusters begin at copies of the centre, and the mean of all is the centre again: an exact tie for everyone."""
    if path == "numpy":
        monkeypatch.setattr(engine, "compiled_kernel", lambda: None)
    centre, around = np.zeros((copies, 1, 2)), np.array([[0.1, 0], [-0.1, 0], [0.3, 0.7], [-0.3, -0.7]])[:, None]
    chunks = np.concatenate([centre, around])
    assert keystone.select(chunks, "cluster-medoid", init="first").sizes.tolist() == [copies + 4, 0]


def test_selecting_leaves_denormal_numbers_alone():
    """Code built with -ffast-math would flush them to zero in the whole process."""
    keystone.select(np.random.default_rng(0).normal(size=(16, 8, 7)).astype(np.float32))
    keystone.select(np.random.default_rng(0).normal(size=(16, 8, 7)), metric="l1")
    assert np.float64(5e-324) * np.float64(1.0) > 0
    assert (np.full(8, 1e-40, np.float32) * np.float32(0.5) > 0).all()
    assert bool((torch.full((8,), 1e-40) * 0.5 > 0).all())


@pytest.mark.parametrize("size", [1e-25, 1e-22, 3e-22, 1e-21])
def test_tiny_float32_distances_survive(size):
    """Squares of these differences vanish in float32 or keep a few bits; the kernel must notice and go on in float64."""
    for case in range(50):
        chunks = (size * np.random.default_rng(case).normal(size=(9, 2, 3))).astype(np.float32)
        selection = keystone.select(chunks, "medoid")
        assert selection.index == keystone.select(chunks.astype(np.float64), "medoid").index
        assert selection.median_distance == pytest.approx(judge(chunks).median, rel=1e-9, abs=0)
