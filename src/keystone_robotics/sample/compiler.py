"""Check at attaching whether ``torch.compile`` works, before a robot waits for it."""

from __future__ import annotations

from typing import Any

import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter


def check_compiler(adapter: Adapter, policy: Any) -> None:
    """Compile a one-line function on the policy's device.

    Raises:
        KeystoneError: if the adapter has no step to compile, or the compiler is missing or broken.
    """
    if not adapter.compiles:
        raise KeystoneError(
            f"compile=True: adapter {adapter.name} has no denoising step of its own to compile; compile the policy's network "
            "(module.compile()), which rounds then call"
        )
    device = next((weight.device for weight in adapter.module(policy).parameters()), torch.device("cpu"))
    try:
        torch.compile(_probe, options={"fx_graph_cache": False})(torch.zeros(8, device=device))
    except Exception as error:
        raise KeystoneError(
            f"compile=True: torch.compile does not work on {device.type} here ({type(error).__name__}: {_first_line(error)}). "
            f"It needs {'Triton' if device.type == 'cuda' else 'a C++ compiler such as g++'}; or leave compile=True out"
        ) from error


def _probe(values: torch.Tensor) -> torch.Tensor:
    return values.sin() + 1


def _first_line(error: Exception) -> str:
    return next((line.strip()[:200] for line in str(error).splitlines() if line.strip()), "no message")
