"""The conditions under which a round is sampled, and the precision to expect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.modules.conv import _ConvNd

from keystone_robotics.sample.request import SampleRequest


class SamplingContext(NamedTuple):
    """Conditions that may change between rounds and select other code in a sampler; a path is verified for each separately.

    Attributes:
        batched: more than one observation.
        delayed: real-time chunking with fixed first steps.
        guided: sampling is guided by the previous chunk.
        noise: dtype of the initial noise.
        products: dtype of matrix products, under autocast.
        gradients: recorded or not.
        steps: denoising steps; None for the policy's own number. A fast path may prepare values for each step.

    >>> from keystone_robotics.sample.request import NoiseSpec
    >>> request = SampleRequest(single=lambda: None, noise=NoiseSpec(batch=1, shape=(16, 7), device="cpu"))
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     SamplingContext.of(request).products
    torch.bfloat16
    """

    batched: bool
    delayed: bool
    guided: bool
    noise: torch.dtype
    products: torch.dtype
    gradients: bool
    steps: int | None = None

    @classmethod
    def of(cls, request: SampleRequest, steps: int | None = None) -> SamplingContext | None:
        """None if the sampler is vectorised: then there is only one path."""
        noise = request.noise
        if noise is None:
            return None
        products, gradients = _product_dtype(noise.device), torch.is_grad_enabled()
        return cls(noise.batch > 1, request.delay > 0, request.guided, noise.dtype, products, gradients, steps)


def coarsest_type(
    sampling: Iterable[Any],
    dtype: torch.dtype,
    device: torch.device | str,
    encoding: Iterable[Any] | None = None,
) -> torch.dtype:
    """The coarsest dtype used in sampling: of the noise, of the modules' parameters, or of autocast.

    Args:
        sampling: the modules used in sampling.
        dtype: of the noise.
        device: of the noise.
        encoding: encoder modules within them, excluded together with convolutions in TF32; None to exclude nothing.

    >>> policy = torch.nn.ModuleDict({"encoder": torch.nn.Linear(2, 2).half(), "expert": torch.nn.Linear(2, 2)})
    >>> coarsest_type([policy], torch.float32, "cpu")
    torch.float16
    >>> coarsest_type([policy], torch.float32, "cpu", encoding=[policy["encoder"]])
    torch.float32
    """
    excluded = set(_modules_in(encoding or ()))
    modules = [module for module in _modules_in(sampling) if module not in excluded]
    types = {dtype, _product_dtype(device)}
    types |= {weight.dtype for module in modules for weight in module.parameters(recurse=False)}
    if torch.device(device).type == "cuda":
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        convolves = encoding is None and any(isinstance(module, _ConvNd) for module in modules)
        if _in_tf32(matmul, matmul) or (convolves and _in_tf32(getattr(cudnn, "conv", None), cudnn)):
            types.add(torch.float16)  # as many mantissa bits as TF32
    return max((kind for kind in types if kind.is_floating_point), key=lambda kind: torch.finfo(kind).eps)


def _modules_in(parts: Iterable[Any]) -> Iterator[torch.nn.Module]:
    return (module for part in parts if isinstance(part, torch.nn.Module) for module in part.modules())


def _in_tf32(setting: Any, before: Any) -> bool:
    """Whether products are computed in TF32, by torch's current setting or by the one of older versions.

    Reading the old setting raises once the new one was set; the new one reflects both.
    """
    precision = getattr(setting, "fp32_precision", None)
    return bool(before.allow_tf32) if precision is None else precision == "tf32"


def _product_dtype(device: torch.device | str) -> torch.dtype:
    one = torch.ones(1, 1, device=device)
    return (one @ one).dtype  # autocast's dtype in every version of torch
