"""What a round's cost depends on: the policy's architecture, the adapter, the device, versions."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from keystone.handle import Handle

#: Packages whose version counts where they take part.
PACKAGES = ("keystone-robotics", "torch", "numba", "lerobot", "transformers")


def fingerprint_policy(handle: Handle, device: torch.device, batch: int | None) -> str:
    """A hash that is equal where a profile of an attached policy holds: the values of its weights may differ, but not their
    shapes and types.
    """
    owner = handle.session.owner
    seams = handle.sampler.seams(owner)
    modules = [owner, *(module for module, _ in seams)]
    shapes = {
        f"{number}.{name}": [list(weight.shape), str(weight.dtype)]
        for number, module in enumerate(modules)
        if isinstance(module, torch.nn.Module)
        for name, weight in module.named_parameters()
    }
    known = {
        "adapter": [handle.adapter, *(f"{seam.__module__}.{seam.__qualname__}" for _, seam in seams)],
        "weights": shapes,
        "cost": handle.sampler.cost(owner),
        "path": [handle.session.fast, handle.session.compile],
        "settings": _numbers(getattr(owner, "config", None)),
        "device": describe_device(device),
        "versions": versions(),
        "batch": batch,
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def describe_device(device: torch.device) -> str:
    """The name of a GPU; of a processor with the threads that torch uses."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device.type})"
    if device.type == "cpu":
        return f"{_processor()}, {torch.get_num_threads()} of {os.cpu_count()} threads (cpu)"
    return device.type


def versions() -> dict[str, str]:
    """Of Python, CUDA and those packages that are loaded."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        if package.partition("-")[0] in sys.modules:
            try:
                found[package] = version(package)
            except PackageNotFoundError:  # a source tree on PYTHONPATH
                found[package] = "unknown"
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def _numbers(config: Any) -> dict[str, float]:
    """The settings of a policy that are numbers: steps, sizes, switches. Names and paths do not cost time."""
    return {
        name: value
        for name, value in sorted(getattr(config, "__dict__", {}).items())
        if isinstance(value, (bool, int, float))
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")  # platform.processor() is empty on most Linux
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
