"""What a denoising step needs to be compiled, once for contexts of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor


def call_network(network: Callable[..., Tensor], **inputs: Any) -> Tensor:
    """Call a network; a function, so that it can be compiled (see `Engine.compiled_step`)."""
    return network(**inputs)


def mark_dynamic_lengths(contexts: Iterable[tuple[Tensor, Tensor, Tensor | None]]) -> None:
    """Mark the context length as dynamic for the compiler: it differs between instructions.

    Otherwise the step is specialised to the length of the first round and recompiled for the next instruction, in the middle
    of an episode.

    Args:
        contexts: keys and values (B, N, P, D), and a mask or bias (..., P) or None; P is dynamic.
    """
    from torch._dynamo import maybe_mark_dynamic  # takes a second to import, and only compiling needs it

    for keys, values, mask in contexts:
        maybe_mark_dynamic(keys, 2)
        maybe_mark_dynamic(values, 2)
        if mask is not None:
            maybe_mark_dynamic(mask, mask.ndim - 1)
