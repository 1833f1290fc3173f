"""What the selector benchmarks compare, each as one public call: candidates in, its own result out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

import keystone_robotics as keystone
from benchmarks.reference import cluster_medoid_select
from keystone_robotics.select import engine


@contextlib.contextmanager
def numba_absent() -> Iterator[None]:
    """Within this block `keystone.select` works as where numba is not installed."""
    found = engine.compiled_kernel
    engine.compiled_kernel = lambda: None  # type: ignore[assignment]
    try:
        yield
    finally:
        engine.compiled_kernel = found


def without_numba(candidates: Tensor, **params: object) -> keystone.Selection:
    """`keystone.select` without numba."""
    with numba_absent():
        return keystone.select(candidates, **params)


#: By the name used in the result files; all are compared with "reference".
SELECTORS: dict[str, Callable[..., object]] = {
    "reference": cluster_medoid_select,
    "compiled": keystone.select,
    "early exit": without_numba,
}


def on_each(name: str, inputs: Sequence[Tensor], **params: object) -> Callable[[], object]:
    """A call without arguments that gives each of the (B, K, T, D) inputs to a selector, one after the other.

    A single observation goes in as it would be written: (K, T, D). The reference takes batches only.
    """
    selector = SELECTORS[name]
    alone = len(inputs[0]) == 1 and name != "reference"
    given = [one[0] if alone else one for one in inputs]

    def call() -> None:
        for candidates in given:
            selector(candidates, **params)

    return call
