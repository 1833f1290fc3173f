"""`keystone_robotics.reducers`: one chunk of N candidates, and the contract for engines, without torch modules."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import keystone_robotics as keystone
from keystone_robotics.reducers import REDUCERS, candidate_noise, check_engine, reduce


@pytest.mark.parametrize("name", REDUCERS)
def test_numpy_and_torch_agree_with_select(name):
    candidates = np.random.default_rng(0).normal(size=(3, 16, 8, 2)).astype(np.float32)
    expected = keystone.select(candidates, name).chunk
    np.testing.assert_array_equal(reduce(candidates, name), expected)
    made = reduce(torch.from_numpy(candidates), name)
    assert made.dtype is torch.float32
    np.testing.assert_array_equal(made.numpy(), expected)


def test_parameters_metric_and_executed_steps_count():
    candidates = np.random.default_rng(1).normal(size=(16, 8, 2))
    expected = keystone.select(candidates, "density", keystone.ActionSpace(steps=3), neighbours=2, metric="l1").chunk
    np.testing.assert_array_equal(reduce(candidates, "density:neighbours=2,metric=l1,execute=3"), expected)


def test_a_rule_that_looks_back_is_refused():
    assert "coherent" not in REDUCERS
    with pytest.raises(keystone.KeystoneError, match="looks back"):
        reduce(np.zeros((4, 2, 2)), "coherent")


@given(st.integers(0, 2**63), st.integers(1, 8), st.integers(1, 8))
def test_candidate_j_does_not_depend_on_n(seed, n, more):
    fewer, whole = candidate_noise(seed, n, (3, 2)), candidate_noise(seed, n + more, (3, 2))
    np.testing.assert_array_equal(fewer, whole[:n])
    assert len(np.unique(whole.reshape(n + more, -1), axis=0)) == n + more


def test_the_contract_finds_an_engine_whose_noise_depends_on_n():
    linear = torch.nn.Linear(2, 2)
    with torch.no_grad():
        check_engine(
            lambda seed, n: torch.stack([linear(one) for one in torch.from_numpy(candidate_noise(seed, n, (8, 2)))])
        )
    with pytest.raises(AssertionError, match="candidate 0 of 1 is not candidate 0 of 16"):
        check_engine(lambda seed, n: torch.randn(8, n, 2, generator=torch.Generator().manual_seed(seed)).swapaxes(0, 1))
    with pytest.raises(AssertionError, match="asked for 16"):
        check_engine(lambda seed, n: np.zeros((4, 8, 2)))


def test_torch_is_not_imported_and_the_contract_holds_without_assert():
    code = """
import sys, numpy, keystone_robotics as keystone
keystone.reducers.reduce(numpy.zeros((4, 3, 2)))
try:
    keystone.reducers.check_engine(lambda seed, n: numpy.zeros((4, 8, 2)))
except AssertionError:
    sys.exit("torch" in sys.modules)
sys.exit("the contract was not checked")
"""
    subprocess.run([sys.executable, "-O", "-c", code], check=True, timeout=120)
