"""Pairwise distances in torch, exact enough that every path makes the same decisions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import torch
from torch import Tensor

from keystone_robotics.errors import nearest_name

P = ParamSpec("P")

#: Name of each metric and the number by which the compiled kernel knows it.
METRICS: dict[str, int] = {"l2": 0, "l1": 1, "cosine": 2}

#: A candidate of a larger norm is dropped like one with an infinity: no action is of that size, and squares stay finite.
LARGEST = 1e15

#: A difference that is smaller than this against what it is the difference of is rounding: nothing.
ROUNDING = 1e-13


def check_metric(metric: str) -> int:
    """The kernel's number of a metric, or a clear error.

    >>> check_metric("l1")
    1
    """
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}: {nearest_name(metric, METRICS)}")
    return METRICS[metric]


def working_dtype(device: torch.device) -> torch.dtype:
    """float64 wherever the device has it (Apple's does not)."""
    return torch.float32 if device.type == "mps" else torch.float64


def constant_when_compiled(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """What ``torch.compiler.assume_constant_result`` does, without importing the compiler (seconds) for those who have no
    use of it.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_compiled
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A small tensor, brought to the device once: each time would stall the host, and cannot be captured in a CUDA graph."""
    return _brought(values, dtype, device)


@functools.lru_cache(maxsize=256)
def _brought(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # whoever asks first, it serves training too
        return torch.tensor(values, dtype=dtype, device=device)


def usable(features: Tensor) -> Tensor:
    """(..., K, N) to (..., K): neither NaN nor infinite nor absurdly large."""
    return features.square().sum(-1) < LARGEST * LARGEST


def usable_chunks(chunks: Tensor) -> Tensor:
    """(..., K, T, D) to (..., K): the same of whole chunks, whose embedding may hide a number that is executed."""
    return (chunks.abs() < LARGEST).flatten(-2).all(-1)


def unit_length(features: Tensor) -> Tensor:
    """Each row divided by its norm; a zero row stays zero. Scaled first so that tiny numbers do not vanish."""
    largest = features.abs().amax(-1, keepdim=True)
    scaled = features / torch.where(largest > 0, largest, 1.0)
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / torch.where(norm > 0, norm, 1.0)


def products(features: Tensor) -> Tensor:
    """(..., K, K) inner products of the candidates as seen from the one of middle size.

    Seen from an outlier, the others would all lie in one place. Rows of NaN spoil nothing but themselves.
    """
    size = features.square().sum(-1)
    middle = ((size == size).sum(-1, keepdim=True) - 1).clamp_min(0) // 2
    origin = size.argsort(-1).gather(-1, middle)  # a NaN sorts last
    seen = features - features.take_along_dim(origin.unsqueeze(-1), -2)
    return seen @ seen.transpose(-1, -2)


def squared_distances(product: Any, norms: Any) -> Any:
    """(..., K, K) squared distances from inner products and their diagonal, both torch or both numpy."""
    both = norms[..., :, None] + norms[..., None, :]
    squared = both - 2 * product
    return squared * (squared > both * 1e-14)  # less is rounding: equal candidates are at distance zero


def pairwise(features: Tensor, metric: str = "l2") -> tuple[Tensor, Tensor]:
    """Distances in the metric, and the squared Euclidean distances that k-means works on.

    The squares come from one matrix product of the candidates *as seen from one of them*, in float64: what cancels there
    is far below the resolution of float32 actions. (``torch.cdist`` uses the product of the raw candidates as soon as there
    are more than 25, and loses the distances when those are small against the distance from zero.) For ``cosine`` the rows
    are first brought to unit length, where the cosine distance is half the squared Euclidean one.

    Args:
        features: (..., K, N) in the working dtype.
        metric: "l2", "l1" or "cosine".

    Returns:
        (distances, squared), both (..., K, K).

    >>> distances, squared = pairwise(torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64))
    >>> distances.tolist(), squared.tolist()
    ([[0.0, 5.0], [5.0, 0.0]], [[0.0, 25.0], [25.0, 0.0]])
    """
    if metric == "cosine":
        features = unit_length(features)
    product = products(features)
    squared = squared_distances(product, product.diagonal(dim1=-2, dim2=-1))
    if metric == "l1":
        return torch.cdist(features, features, p=1.0), squared
    return (squared / 2 if metric == "cosine" else squared.sqrt()), squared
