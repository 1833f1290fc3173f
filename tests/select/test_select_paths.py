"""The compiled kernel, the numpy path and the branch-free torch path decide alike."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_oracle import KINDS, shape_of
from torch.utils._python_dispatch import TorchDispatchMode

import keystone_robotics as keystone
from keystone_robotics import ActionSpace
from keystone_robotics.select import branch_free, device, early_exit, engine
from keystone_robotics.select.metrics import LARGEST

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


def all_paths(features, metric, clusters, tau, iterations, init, seed):
    """The Outcome of the kernel, of the numpy path, and of the torch path in the same form."""
    params = {"clusters": clusters, "tau": tau, "iterations": iterations, "init": init}
    assert engine.compiled_kernel() is not None
    compiled = engine.cluster_medoids(features, metric, seed, **params)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy must not complain about numbers that are dropped
        patch.setattr(engine, "compiled_kernel", lambda: None)
        plain = engine.cluster_medoids(features, metric, seed, **params)
    order = torch.from_numpy(engine.starting_order(init, features.shape[1], seed))
    named = "order" if engine.INITS[init] == 0 else init
    most = min(clusters, features.shape[1])
    tensors = branch_free.choose(torch.from_numpy(features), order, metric, most, tau, iterations, named)
    head = torch.stack([tensors.chosen, tensors.clustered.long()], 1)
    free = engine.Outcome(
        torch.cat([head, tensors.labels], 1).numpy(),
        tensors.sizes.numpy(),
        torch.stack([tensors.spread, tensors.median], 1).numpy(),
        int((tensors.labels < 0).sum()),
    )
    return compiled, plain, free


def assert_alike(outcomes):
    first = outcomes[0]
    assert (first.measures >= 0).all()
    for other in outcomes[1:]:
        np.testing.assert_array_equal(first.indices, other.indices)
        np.testing.assert_array_equal(first.sizes, other.sizes)
        assert first.dropped == other.dropped
        np.testing.assert_allclose(first.measures, other.measures, rtol=1e-4, atol=1e-6)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(rounds_of(), METRICS, st.integers(1, 5), st.sampled_from([0.3, 0.0, -np.inf, np.inf]), INITS, st.integers(0, 9))
def test_three_paths_decide_alike(features, metric, clusters, tau, init, seed):
    assert_alike(all_paths(features, metric, clusters, tau, 10, init, seed))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rounds_of(), st.integers(1, 3), INITS)
def test_three_paths_stop_alike(features, iterations, init):
    assert_alike(all_paths(features, "l2", 3, -np.inf, iterations, init, 0))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("clusters", [1, 2, 3, 7])
@pytest.mark.parametrize("init", ["random", "first", "farthest", "best"])
def test_three_paths_on_few_candidates(k, clusters, init):
    rng = np.random.default_rng(k)
    sets = [rng.normal(size=(k, 4)), np.zeros((k, 4)), np.ones((k, 4)) * 7.3, np.arange(k * 4).reshape(k, 4) % 3]
    features = np.stack(sets).astype(np.float64)
    for metric in ("l2", "l1", "cosine"):
        for tau in (0.3, -np.inf):
            outcomes = all_paths(features, metric, clusters, tau, 10, init, 1)
            assert_alike(outcomes)
            assert (outcomes[0].indices[:, 0] >= 0).all()
            assert (outcomes[0].sizes.sum(1) == k).all()


@pytest.mark.parametrize("outlier", [1e3, 1e5, 1e7, 1e10, 1e14])
@pytest.mark.parametrize("where", [0, 3, 15])
def test_an_outlier_does_not_blind_any_path(outlier, where):
    """Seen from an outlier all others lie in one place: distances must not be measured from there."""
    for case in range(10):
        chunks = 0.01 * np.random.default_rng(case).normal(size=(16, 5, 2))
        chunks[where] = outlier
        outcomes = all_paths(chunks.reshape(1, 16, 10), "l2", 2, 0.3, 10, "random", case)
        assert_alike(outcomes)
        others = np.delete(chunks, where, 0).reshape(15, 10)
        nearest = np.linalg.norm(others[:, None] - others[None], axis=2).sum(1).argmin()
        expected = nearest + (nearest >= where)
        assert all(outcome.indices[0, 0] == expected for outcome in outcomes)
        assert keystone.select(chunks, "density", neighbours=14).index == expected


@pytest.mark.parametrize("path", [early_exit, branch_free])
def test_paths_agree_on_the_constants(path):
    kernel = engine.compiled_kernel()
    assert path.EPSILON == kernel.EPSILON == 1e-8
    assert kernel.LARGEST == LARGEST
    assert path.ROUNDING == kernel.ROUNDING
    assert early_exit.CANCELLED == kernel.CANCELLED


# --- select_on_device


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rounds_of(12), METRICS, st.integers(1, 4), INITS, st.integers(0, 9))
def test_on_device_says_what_select_says(features, metric, clusters, init, seed):
    chunks = torch.from_numpy(features).unsqueeze(2)
    params = {"metric": metric, "clusters": clusters, "init": init}
    chosen = keystone.select_on_device(chunks, seed=seed, **params)
    valid = (torch.from_numpy(features).double().square().sum(2) < LARGEST**2).any(1)
    assert chosen.any_valid.tolist() == valid.tolist()
    for b in np.flatnonzero(valid.numpy()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            selection = keystone.select(chunks[b], "keystone", seed=seed, **params)
        assert int(chosen.index[b]) == selection.index
        assert torch.equal(chosen.chunk[b], selection.chunk)
        assert bool(chosen.clustered[b]) == selection.clustered
        assert float(chosen.consensus[b]) == pytest.approx(selection.consensus)
        assert float(chosen.spread[b]) == pytest.approx(selection.spread, rel=1e-4, abs=1e-6)


def test_on_device_without_a_batch():
    chunks = torch.randn(7, 5, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    chosen = keystone.select_on_device(chunks)
    assert chosen.index.shape == chosen.clustered.shape == chosen.any_valid.shape == ()
    assert chosen.chunk.dtype is torch.bfloat16
    assert torch.equal(chosen.chunk, chunks[chosen.index])
    assert int(chosen.index) == keystone.select(chunks).index


def test_on_device_reports_that_nothing_is_valid():
    chunks = torch.randn(3, 4, 2, 2)
    chunks[1] = torch.nan
    chosen = keystone.select_on_device(chunks)
    assert chosen.any_valid.tolist() == [True, False, True]
    assert (chosen.index >= 0).all()
    assert (chosen.consensus >= 0).all()


SPACES = [
    None,
    ActionSpace(dims=7, steps=5),
    ActionSpace(
        dims=[0, 2, 4, 5, 6, 7, 8, 9, 10], scale=2.0, rotation={"quaternion-xyzw": 4}, gripper={10: "logit", 9: 0.5}
    ),
    ActionSpace(rotation={"6d": 0, "euler-xyz": 6}, steps=range(2, 6)),
]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("broken", [False, True])
def test_on_device_with_a_space(space, broken):
    chunks = torch.randn(40, 9, 8, 12, generator=torch.Generator().manual_seed(3))
    if broken:
        chunks[:, 2, 7, 11] = torch.nan  # a number that does not count in most of the spaces
        chunks[:, 4, 0, 11] = 1e20
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        selection = keystone.select(chunks, space=space)
    assert keystone.select_on_device(chunks, space).index.tolist() == selection.index.tolist()
    if broken:
        assert (selection.labels[:, [2, 4]] == -1).all()


class Recorder(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


#: Operators whose result (or whose shape) the host must wait for.
WAITING = {"_local_scalar_dense", "item", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "_unique2"}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("init", ["random", "best"])
def test_on_device_never_waits_for_the_device(space, init, monkeypatch):
    chunks = torch.randn(2, 6, 8, 12)
    keystone.select_on_device(chunks, space, clusters=3, init=init)  # the first call may bring constants to the device
    monkeypatch.setattr(torch, "tensor", None)
    monkeypatch.setattr(torch, "from_numpy", None)
    with Recorder() as recorder:
        keystone.select_on_device(chunks, space, clusters=3, init=init)
    assert not recorder.names & WAITING
    assert "lift_fresh" not in recorder.names  # a tensor made from Python numbers


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"space": SPACES[1], "metric": "l1"},
        {"space": SPACES[2], "init": "best", "clusters": 3},
        {"space": SPACES[3], "metric": "cosine", "init": "farthest"},
        {"init": "first", "seed": 4, "tau": 0.0},
    ],
)
def test_on_device_compiles_to_one_graph(params):
    """`fullgraph` refuses any branch on data and any transfer to the host."""
    chunks = torch.randn(3, 8, 8, 12, generator=torch.Generator().manual_seed(5))
    chunks[0, 2, 1, 1] = torch.inf
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch's own
        warnings.filterwarnings("ignore", message="Guards may run slower")  # torch's own, about Python 3.13.0
        compiled = torch.compile(keystone.select_on_device, fullgraph=True, backend="eager")(chunks, **params)
    eager = keystone.select_on_device(chunks, **params)
    for name in eager._fields:
        torch.testing.assert_close(getattr(compiled, name), getattr(eager, name))


def test_compiled_once_called_with_other_numbers():
    """What is a constant of the graph (the seed's order, K, C) must make another graph when it changes, not an error."""
    torch._dynamo.reset()
    compiled = torch.compile(keystone.select_on_device, fullgraph=True, backend="eager")
    generator = torch.Generator().manual_seed(1)
    answers = set()
    calls = [
        ((20, 9, 1, 1), {}),
        ((20, 9, 1, 1), {"seed": 1}),
        ((20, 9, 1, 1), {"seed": 2, "clusters": 3}),
        ((20, 7, 2, 3), {}),
        ((5, 6, 3, 3), {"clusters": 4, "seed": 5}),
        ((5, 6, 3, 3), {"iterations": 2}),
        ((5, 6, 3, 3), {"tau": 0.1, "iterations": 3}),
    ]
    for shape, params in calls:
        chunks = torch.rand(shape, generator=generator)
        index = compiled(chunks, **params).index.tolist()
        assert index == keystone.select(chunks, **params).index.tolist(), (shape, params)
        answers.add(tuple(index))
    assert len(answers) == len(calls)


def test_on_device_in_inference_mode_then_in_training():
    space = ActionSpace(scale=[2.0, 3.0, 0.125])
    with torch.inference_mode():
        keystone.select_on_device(torch.randn(5, 2, 3), space)
    chunks = torch.randn(5, 2, 3, requires_grad=True)
    chosen = keystone.select_on_device(chunks, space)
    chosen.chunk.sum().backward()
    assert chunks.grad.sum() == 6
    assert (chunks.grad[chosen.index] == 1).all()


@pytest.mark.parametrize(
    ("candidates", "params", "error", "message"),
    [
        (torch.zeros(3, 2), {}, ValueError, r"shape \(3, 2\).*candidates\[None\]"),
        (torch.zeros(2, 0, 3, 4), {}, ValueError, "nothing to select from"),
        (torch.zeros(3, 2, 2, dtype=torch.int64), {}, TypeError, "torch.int64: expected floating-point"),
        (torch.zeros(3, 2, 2), {"metric": "l3"}, ValueError, "unknown metric 'l3': did you mean 'l2'"),
        (torch.zeros(3, 2, 2), {"init": "frist"}, ValueError, "unknown init 'frist': did you mean 'first'"),
        (torch.zeros(3, 2, 2), {"clusters": 0}, ValueError, "clusters=0: expected a whole number, 1 or more"),
        (torch.zeros(3, 2, 2), {"iterations": 0}, ValueError, "iterations=0"),
        (torch.zeros(3, 2, 2), {"tau": "low"}, ValueError, "tau='low': expected a number"),
        (torch.zeros(3, 2, 2), {"seed": 0.5}, TypeError, "seed=0.5: expected a whole number"),
    ],
)
def test_on_device_refuses_what_it_cannot_use(candidates, params, error, message):
    with pytest.raises(error, match=message):
        keystone.select_on_device(candidates, **params)


# --- the engine


def test_numba_missing_is_noticed(monkeypatch, caplog):
    """As in an environment without numba: importing the kernel fails, and selecting goes on without it."""
    import sys

    monkeypatch.setitem(sys.modules, "keystone_robotics.select.kernel", None)
    monkeypatch.delattr(sys.modules["keystone.select"], "kernel", raising=False)
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
    known = set(kernel.choose.signatures)
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
    assert len(answers) == 1
    assert set(kernel.choose.signatures) == known


def test_the_order_of_a_seed_never_changes():
    assert engine.starting_order("random", 8, 0).tolist() == [6, 2, 1, 7, 3, 0, 5, 4]
    assert engine.starting_order("random", 8, 2**32).tolist() == engine.starting_order("random", 8, 0).tolist()
    assert engine.starting_order("random", 5, -1).tolist() == engine.starting_order("random", 5, 2**32 - 1).tolist()
    assert engine.starting_order("first", 4, 9).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", [None, 1.5, "1", True])
def test_a_seed_is_a_whole_number(seed):
    engine.starting_order.cache_clear()  # True would find the order of 1
    with pytest.raises(TypeError, match="expected a whole number"):
        keystone.select(np.zeros((3, 2, 2)), seed=seed)


def test_constants_are_brought_to_the_device_once():
    first = device._order_on("random", 5, 3, torch.device("cpu"))
    assert device._order_on("random", 5, 3, torch.device("cpu")) is first
