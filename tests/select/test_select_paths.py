"""The compiled kernel and the numpy path decide alike."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_oracle import KINDS, shape_of

import keystone_robotics as keystone
from keystone_robotics.select import engine, metrics
from keystone_robotics.select.rounds import Candidates

INITS = st.sampled_from(["random", "first", "farthest", "best"])
METRICS = st.sampled_from(["l2", "l1", "cosine"])
BROKEN = (np.nan, np.inf, -np.inf, 1e20, 3e38)


@st.composite
def rounds_of(draw, largest_k: int = 20):
    """(B, K, N) features, some of whose candidates are broken."""
    batch, k, n = draw(st.integers(1, 4)), draw(st.integers(1, largest_k)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind, offset = draw(st.sampled_from(KINDS)), draw(st.sampled_from([0.0, 1.0, 100.0]))
    spread = draw(st.sampled_from([1.0, 0.1, 1e-3]))
    values = offset + spread * np.stack([shape_of(kind, k, n, rng) for _ in range(batch)])
    values = values.astype(draw(st.sampled_from([np.float32, np.float64])))
    share = draw(st.sampled_from([0.0, 0.0, 0.2, 0.7, 1.0]))
    for b, i in np.argwhere(rng.random((batch, k)) < share):
        values[b, i, rng.integers(n)] = rng.choice(BROKEN)
    return values


def both_paths(features, metric, **params):
    """The result of the kernel and of the numpy path; each row of features is one step."""
    candidates = Candidates(features[:, :, None], features, None, metric, params.pop("seed", 0))
    clustering = {name: params.pop(name) for name in engine.Clustering._fields if name in params}
    params["clustering"] = engine.Clustering(**clustering)
    assert engine.compiled_kernel() is not None
    compiled = engine.select_rounds(candidates, **params)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy must not complain about numbers that are dropped
        patch.setattr(engine, "compiled_kernel", lambda: None)
        return compiled, engine.select_rounds(candidates, **params)


def assert_alike(compiled, plain):
    assert (compiled.measures >= 0).all()
    np.testing.assert_array_equal(compiled.indices, plain.indices)
    np.testing.assert_array_equal(compiled.sizes, plain.sizes)
    np.testing.assert_array_equal(compiled.members, plain.members)
    assert compiled.dropped == plain.dropped
    np.testing.assert_allclose(compiled.measures, plain.measures, rtol=1e-4, atol=1e-6)


TAUS = st.sampled_from([0.3, 0.0, -np.inf, np.inf])
AVERAGES = st.sampled_from(list(engine.AVERAGES))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    rounds_of(), METRICS, st.integers(1, 5), TAUS, INITS, st.integers(0, 9), AVERAGES, st.sampled_from([0.5, 0.3, 1.0])
)
def test_both_paths_decide_alike(features, metric, clusters, tau, init, seed, average, share):
    params = {"clusters": clusters, "tau": tau, "init": init, "seed": seed, "average": average, "share": share}
    assert_alike(*both_paths(features, metric, **params))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rounds_of(), st.integers(1, 3), INITS)
def test_both_paths_stop_alike(features, iterations, init):
    assert_alike(*both_paths(features, "l2", clusters=3, tau=-np.inf, iterations=iterations, init=init))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize(("clusters", "init"), [(1, "random"), (2, "first"), (3, "farthest"), (7, "best")])
def test_both_paths_on_few_candidates(k, clusters, init):
    rng = np.random.default_rng(k)
    sets = [rng.normal(size=(k, 4)), np.zeros((k, 4)), np.ones((k, 4)) * 7.3, np.arange(k * 4).reshape(k, 4) % 3]
    features = np.stack(sets).astype(np.float64)
    for metric in ("l2", "l1", "cosine"):
        for tau in (0.3, -np.inf):
            compiled, plain = both_paths(features, metric, clusters=clusters, tau=tau, init=init, seed=1)
            assert_alike(compiled, plain)
            assert (compiled.indices[:, 0] >= 0).all()
            assert (compiled.sizes.sum(1) == k).all()


@pytest.mark.parametrize(("outlier", "where"), [(1e3, 0), (1e7, 3), (1e14, 15)])
def test_an_outlier_does_not_blind_any_path(outlier, where):
    """Seen from an outlier all others lie in one place: distances must not be measured from there."""
    for case in range(10):
        chunks = 0.01 * np.random.default_rng(case).normal(size=(16, 5, 2))
        chunks[where] = outlier
        results = both_paths(chunks.reshape(1, 16, 10), "l2", clusters=2, tau=0.3, init="random", seed=case)
        assert_alike(*results)
        others = np.delete(chunks, where, 0).reshape(15, 10)
        nearest = np.linalg.norm(others[:, None] - others[None], axis=2).sum(1).argmin()
        expected = nearest + (nearest >= where)
        assert all(result.indices[0, 0] == expected for result in results)
        assert keystone.select(chunks, "density", neighbours=14).index == expected


# --- the engine


def test_numba_missing_is_noticed(monkeypatch, caplog):
    """As in an environment without numba: importing the kernel fails, and selecting goes on without it."""
    import sys

    monkeypatch.setitem(sys.modules, "keystone_robotics.select.kernel", None)
    monkeypatch.delattr(sys.modules["keystone_robotics.select"], "kernel", raising=False)
    engine.compiled_kernel.cache_clear()
    try:
        with caplog.at_level("INFO", logger="keystone"):
            assert engine.compiled_kernel() is None
        assert "install keystone-robotics[fast]" in caplog.text
        assert keystone.select(np.array([0.0, 1, 9]).reshape(3, 1, 1), "medoid").index == 1
    finally:
        engine.compiled_kernel.cache_clear()


def test_the_kernel_is_compiled_for_two_dtypes_only():
    """Anything else the caller brings must not cost him a compilation in the middle of an episode."""
    kernel = engine.compiled_kernel()
    engine.warm_up()
    known = set(kernel.compiled_rounds.signatures)
    values = np.random.default_rng(0).normal(size=(6, 4, 3))
    read_only = values.copy()
    read_only.flags.writeable = False
    sent = np.frombuffer(b"\0" + values.tobytes(), np.float64, values.size, 1).reshape(values.shape)
    answers = {
        keystone.select(chunks, "keystone", **params).index
        for chunks in (values, read_only, sent, values[None][0], np.asfortranarray(values), values.astype(">f8"))
        for params in (
            {},
            {"tau": np.float32(0.3)},
            {"clusters": np.int32(2)},
            {"iterations": np.int16(10)},
            {"seed": np.int8(0)},
        )
    }
    for tau in (1, True + 0, -1):
        keystone.select(values, tau=tau)
    keystone.select(values, "core-mean", share=1)
    assert len(answers) == 1
    assert set(kernel.compiled_rounds.signatures) == known


def test_the_order_of_a_seed_never_changes():
    assert engine.starting_order("random", 8, 0).tolist() == [6, 2, 1, 7, 3, 0, 5, 4]
    assert engine.starting_order("random", 8, 2**32).tolist() == engine.starting_order("random", 8, 0).tolist()
    assert engine.starting_order("random", 5, -1).tolist() == engine.starting_order("random", 5, 2**32 - 1).tolist()
    assert engine.starting_order("first", 4, 9).tolist() == [0, 1, 2, 3]
    assert not engine.starting_order("random", 8, 0).flags.writeable  # all calls share it


@pytest.mark.parametrize("seed", [None, 1.5, "1", True])
def test_a_seed_is_a_whole_number(seed):
    engine.starting_order.cache_clear()  # True would find the order of 1
    with pytest.raises(TypeError, match="expected a whole number"):
        keystone.select(np.zeros((3, 2, 2)), seed=seed)


def test_the_kernel_has_the_constants_of_the_path_without_it():
    """They are written twice, because numba's cache on disk knows when the kernel's file changes, and no other."""
    kernel = engine.compiled_kernel()
    assert kernel is not None
    for name in ("CANCELLED", "EPSILON", "GROUP_DIAMETERS", "JITTER", "LARGEST", "ROUNDING"):
        assert getattr(kernel, name) == getattr(metrics, name)
