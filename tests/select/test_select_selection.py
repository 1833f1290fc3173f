"""The answer: what it prints, and that importing it costs and says nothing."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

import keystone_robotics as keystone
from keystone_robotics import Selection

TWO_WAYS = np.array([0, 0.1, 0.2, 5, 5.1]).reshape(5, 1, 1)


def broken(chunks: np.ndarray) -> np.ndarray:
    chunks = chunks.copy()
    chunks[-1] = np.nan
    return chunks


def test_prints_one_line():
    assert repr(keystone.select(TWO_WAYS, init="farthest")) == (
        "keystone selected candidate 1 of 5: consensus 0.60 (clusters of 3, 2), dispersion 0.96, "
        "spread 0.39, median distance 4.8"
    )
    assert str(keystone.select(TWO_WAYS, "medoid")) == (
        "medoid selected candidate 2 of 5: consensus 0.60, dispersion 0.96, spread 0.39, median distance 4.8"
    )
    assert str(keystone.select(TWO_WAYS, "mean")).startswith(
        "mean averaged, nearest to candidate 2 of 5: consensus 0.60"
    )


def test_prints_what_was_dropped():
    with pytest.warns(RuntimeWarning):
        selection = keystone.select(broken(TWO_WAYS), "first")
    assert str(selection).startswith("first selected candidate 0 of 5: consensus 0.50")
    assert str(selection).endswith("; dropped 1 that were not finite")


def test_prints_a_batch():
    rounds = np.stack([TWO_WAYS, TWO_WAYS * 0])
    assert str(keystone.select(rounds, init="farthest")) == (
        "keystone selected candidates [1, 0] of 5 for 2 observations: clustered 1 of 2, "
        "mean consensus 0.80, mean dispersion 0.48"
    )
    assert str(keystone.select(rounds, "mean")).startswith(
        "mean averaged, nearest to candidates [2, 0] of 5 for 2 observations"
    )
    rounds[0, 0] = np.inf
    with pytest.warns(RuntimeWarning):
        assert str(keystone.select(rounds)).endswith("; dropped 1 that were not finite")


def test_types_of_one_round_are_pythons():
    selection = keystone.select(TWO_WAYS)
    assert [type(x) for x in (selection.index, selection.clustered, selection.spread, selection.median_distance)] == [
        int, bool, float, float,
    ]  # fmt: skip
    assert [type(x) for x in (selection.consensus, selection.dispersion, selection.dropped)] == [float, float, int]
    assert [type(x) for x in (selection.rule, selection.synthesised)] == [str, bool]
    assert selection.labels.dtype == selection.sizes.dtype == np.int64
    assert selection.valid.dtype == bool


def test_shapes_of_a_batch():
    selection = keystone.select(np.random.default_rng(0).normal(size=(3, 5, 4, 2)), clusters=3)
    shapes = {
        name: np.shape(getattr(selection, name))
        for name in ("index", "clustered", "spread", "median_distance", "consensus", "dispersion")
    }
    assert set(shapes.values()) == {(3,)}
    assert (selection.labels.shape, selection.valid.shape, selection.sizes.shape) == ((3, 5), (3, 5), (3, 3))
    assert selection.chunk.shape == (3, 4, 2)
    assert selection.dropped.tolist() == [0, 0, 0]


def test_is_immutable():
    selection = keystone.select(TWO_WAYS)
    for name in (*Selection._fields, "valid", "dropped", "other"):
        with pytest.raises(AttributeError):
            setattr(selection, name, 1)
    with pytest.raises(TypeError):
        selection[0] = 1


def test_survives_pickling():
    selection = keystone.select(TWO_WAYS)
    again = pickle.loads(pickle.dumps(selection))
    assert isinstance(again, Selection)
    assert str(again) == str(selection)


def test_two_selections_share_nothing():
    first = keystone.select(TWO_WAYS)
    labels = first.labels.copy()
    keystone.select(TWO_WAYS[::-1])
    keystone.select(TWO_WAYS * 0)
    np.testing.assert_array_equal(first.labels, labels)


# --- import


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)


def test_importing_is_light_and_silent():
    heavy = [
        "torch",
        "lerobot",
        "transformers",
        "numba",
        "matplotlib",
        "scipy",
        "gymnasium",
        "ray",
        "rich",
        "hypothesis",
        "pandas",
    ]
    done = run(f"import sys, keystone_robotics; print([name for name in {heavy} if name in sys.modules])")
    assert done.stdout == "[]\n"
    assert done.stderr == ""


def test_selecting_needs_numpy_only():
    code = (
        "import sys; sys.modules['numba'] = sys.modules['torch'] = None\n"
        "import numpy as np, keystone_robotics as keystone\n"
        "print(keystone.select(np.array([0.0, 1, 9]).reshape(3, 1, 1), 'medoid').index)\n"
        "print([name for name in ('scipy', 'matplotlib', 'lerobot') if name in sys.modules])"
    )
    done = run(code)
    assert done.stdout == "1\n[]\n"
    assert done.stderr == ""


def test_public_names():
    for name in keystone.__all__:
        assert hasattr(keystone, name), name
    assert keystone.__version__[0].isdigit()
