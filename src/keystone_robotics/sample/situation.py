"""In which circumstances a round is drawn, and how exact it can be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.modules.conv import _ConvNd


class Situation(NamedTuple):
    """What may change from round to round and leads a sampler through other code: a path is exact in one, not in all.

    Attributes:
        several: more than one observation.
        delayed: real-time chunking is on its way: part of the chunk is given.
        guided: the chunk is drawn towards a previous one.
        noise: type of the initial noise.
        products: type of matrix products, which autocast may change.
        gradients: are recorded.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     Situation.now(1, 0, False, torch.float32, "cpu").products
    torch.bfloat16
    """

    several: bool
    delayed: bool
    guided: bool
    noise: torch.dtype
    products: torch.dtype
    gradients: bool

    @classmethod
    def now(cls, batch: int, delay: int, guided: bool, dtype: torch.dtype, device: torch.device | str) -> Situation:
        """Of a round with ``batch`` observations, ``delay`` steps of real-time chunking, and noise of this type there."""
        return cls(batch > 1, delay > 0, guided, dtype, _of_products(device), torch.is_grad_enabled())


def coarsest_type(
    sampling: Iterable[Any],
    dtype: torch.dtype,
    device: torch.device | str,
    encoding: Iterable[Any] | None = None,
) -> torch.dtype:
    """The coarsest type that takes part in the sampling: of the noise, of a weight of these modules, or of autocast.

    Args:
        sampling: the modules that are sampled with.
        dtype: of the noise.
        device: of the noise.
        encoding: modules within them that only encode and are left out, where no convolution takes part in the rest; None to
            leave nothing out.

    >>> policy = torch.nn.ModuleDict({"encoder": torch.nn.Linear(2, 2).half(), "expert": torch.nn.Linear(2, 2)})
    >>> coarsest_type([policy], torch.float32, "cpu")
    torch.float16
    >>> coarsest_type([policy], torch.float32, "cpu", encoding=[policy["encoder"]])
    torch.float32
    """
    left_out = set(_modules_in(encoding or ()))
    modules = [module for module in _modules_in(sampling) if module not in left_out]
    types = {dtype, _of_products(device)}
    types |= {weight.dtype for module in modules for weight in module.parameters(recurse=False)}
    if torch.device(device).type == "cuda":
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        convolves = encoding is None and any(isinstance(module, _ConvNd) for module in modules)
        if _in_tf32(matmul, matmul) or (convolves and _in_tf32(getattr(cudnn, "conv", None), cudnn)):
            types.add(torch.float16)  # TF32 keeps as many digits
    return max((kind for kind in types if kind.is_floating_point), key=lambda kind: torch.finfo(kind).eps)


def _modules_in(parts: Iterable[Any]) -> Iterator[torch.nn.Module]:
    return (module for part in parts if isinstance(part, torch.nn.Module) for module in part.modules())


def _in_tf32(setting: Any, before: Any) -> bool:
    """Whether products are computed in TF32, by torch's setting or by the one that older versions have.

    The older one raises where the newer was used; the newer one tells of both.
    """
    precision = getattr(setting, "fp32_precision", None)
    return bool(before.allow_tf32) if precision is None else precision == "tf32"


def _of_products(device: torch.device | str) -> torch.dtype:
    one = torch.ones(1, 1, device=device)
    return (one @ one).dtype  # tells autocast's type in every version of torch
