"""The circumstances in which a round is sampled, and how exact it can be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.modules.conv import _ConvNd

from keystone_robotics.sample.request import SampleRequest


class SamplingContext(NamedTuple):
    """What may change from round to round and leads a sampler through other code: a path is exact in one, not in all.

    Attributes:
        batched: more than one observation.
        delayed: real-time chunking: the first steps of the chunk are fixed.
        guided: the chunk is drawn towards a previous one.
        noise: dtype of the initial noise.
        products: dtype of matrix products, which autocast may change.
        gradients: are recorded.

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

    @classmethod
    def of(cls, request: SampleRequest) -> SamplingContext | None:
        """None where the sampler is vectorised: there is one way to sample then."""
        noise = request.noise
        if noise is None:
            return None
        products, gradients = _product_dtype(noise.device), torch.is_grad_enabled()
        return cls(noise.batch > 1, request.delay > 0, request.guided, noise.dtype, products, gradients)


def coarsest_type(
    sampling: Iterable[Any],
    dtype: torch.dtype,
    device: torch.device | str,
    encoding: Iterable[Any] | None = None,
) -> torch.dtype:
    """The coarsest dtype that takes part in the sampling: of the noise, of a weight of these modules, or of autocast.

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
    types = {dtype, _product_dtype(device)}
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


def _product_dtype(device: torch.device | str) -> torch.dtype:
    one = torch.ones(1, 1, device=device)
    return (one @ one).dtype  # tells autocast's type in every version of torch
