"""K candidates from an unknown sampler: ``torch.vmap`` over its randomness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.noise import NOISE_FUNCTIONS, global_generator


class ScaledFirstDraw(TorchFunctionMode):
    """Scale the first noise draw within this context, which is the initial noise of a sampler."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in NOISE_FUNCTIONS and self._factor != 1.0:
            result, self._factor = result * self._factor, 1.0
        return result


def sample_vectorised(method: Callable[[], Tensor], k: int, seed: int, temperature: float) -> Tensor:
    """(B, K, T, D) from a method that returns (B, T, D) and draws its own noise.

    ``torch.vmap`` batches only what depends on the noise, so the context is encoded once. Limits: attention runs on the math
    backend (the fused kernels have no batching rule), and the method must not write in place into tensors that do not depend
    on the noise.
    """

    def one(_: Tensor) -> Tensor:
        with ScaledFirstDraw(temperature):
            chunks = method()
        if not isinstance(chunks, Tensor) or chunks.ndim != 3:
            what = f"shape {tuple(chunks.shape)}" if isinstance(chunks, Tensor) else f"a {type(chunks).__name__}"
            raise KeystoneError(f"the method returns {what}, expected one tensor of chunks (B, T, D)")
        return chunks

    # Preserve the generators of all devices: the method may draw on any.
    with global_generator, torch.random.fork_rng(), sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(seed % 2**63)
        try:
            candidates: Tensor = torch.vmap(one, randomness="different")(torch.empty(k))
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise KeystoneError(
                f"the method cannot be vectorised over its noise: {error}\nIt needs an adapter (see docs/adapters.md)"
            ) from error
    return candidates.transpose(0, 1)
