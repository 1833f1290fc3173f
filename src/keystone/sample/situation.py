"""In which circumstances a round is drawn, and how exact it can be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch


class Situation(NamedTuple):
    """What may change from round to round and leads a sampler through other code: a path is exact in one, not in all.

    Attributes:
        several: more than one observation.
        delayed: real-time chunking is on its way: part of the chunk is given.
        noise: type of the initial noise.
        products: type of matrix products, which autocast may change.
        gradients: are recorded.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     Situation.now(1, 0, torch.float32, "cpu").products
    torch.bfloat16
    """

    several: bool
    delayed: bool
    noise: torch.dtype
    products: torch.dtype
    gradients: bool

    @classmethod
    def now(cls, batch: int, delay: int, dtype: torch.dtype, device: torch.device | str) -> Situation:
        """Of a round with ``batch`` observations, ``delay`` steps of real-time chunking, and noise of this type there."""
        return cls(batch > 1, delay > 0, dtype, _of_products(device), torch.is_grad_enabled())


def coarsest_type(sampling: Iterable[Any], dtype: torch.dtype, device: torch.device | str) -> torch.dtype:
    """The coarsest type that takes part in the sampling: of the noise, of a weight of these modules, or of autocast.

    >>> coarsest_type([torch.nn.Linear(2, 2).half()], torch.float32, "cpu")
    torch.float16
    """
    modules = [module for module in sampling if isinstance(module, torch.nn.Module)]
    types = {dtype, _of_products(device), *(weight.dtype for module in modules for weight in module.parameters())}
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32):
        types.add(torch.float16)  # TF32 keeps as many digits
    return max((kind for kind in types if kind.is_floating_point), key=lambda kind: torch.finfo(kind).eps)


def _of_products(device: torch.device | str) -> torch.dtype:
    one = torch.ones(1, 1, device=device)
    return (one @ one).dtype  # tells autocast's type in every version of torch
