"""Calls of networks that can be compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def call_network(network: Callable[..., Tensor], **inputs: Any) -> Tensor:
    """Call a network; a function, so that it can be compiled (see `Engine.compiled_step`)."""
    return network(**inputs)
