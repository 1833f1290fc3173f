"""What a round's cost depends on: the policy's architecture, the adapter, the device, versions."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from keystone_robotics.handle import Handle
from keystone_robotics.versions import package_versions

#: Packages whose version always counts; numba's does where it is installed, because selecting uses it then.
ALWAYS = ("keystone-robotics", "torch")
#: Packages whose version counts where a part of the policy comes from them.
OF_POLICIES = ("lerobot", "transformers")


def steps_of(handle: Handle) -> int | None:
    """How many denoising steps an attached policy takes; None if only its caller knows."""
    return handle.steps or handle.engine.adapter.default_steps(handle.engine.owner)


def fingerprint_architecture(handle: Handle, device: torch.device, batch: int | None, steps: int | None = None) -> str:
    """A hash that is equal where a profile of an attached policy holds: the values of its weights may differ, but not their
    shapes and types; ``steps`` in place of its number of denoising steps.
    """
    owner = handle.engine.owner
    overrides = handle.engine.adapter.overrides(owner)
    shapes = {
        f"{number}.{name}": [list(weight.shape), str(weight.dtype)]
        for number, module in enumerate(_modules(handle))
        if isinstance(module, torch.nn.Module)
        for name, weight in module.named_parameters()
    }
    known = {
        "adapter": [handle.adapter, *(f"{one.__module__}.{one.__qualname__}" for _, one in overrides)],
        "weights": shapes,
        "steps": steps or steps_of(handle),
        "cost": handle.engine.adapter.cost(owner),
        "path": [handle.engine.paths.fast, handle.engine.compile],
        "settings": _sizes(getattr(owner, "config", None)),
        "device": describe_device(device, handle),
        "versions": versions(handle),
        "batch": batch,
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def describe_device(device: torch.device, handle: Handle) -> str:
    """The name of a GPU; of a processor with the threads that torch uses; of what an attached policy runs on without torch."""
    if other := handle.engine.adapter.device(handle.engine.owner):
        return other
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device.type})"
    if device.type == "cpu":
        return f"{processor()}, {torch.get_num_threads()} of {os.cpu_count()} threads (cpu)"
    return device.type


def versions(handle: Handle) -> dict[str, str]:
    """Of Python, CUDA and those packages that take part; what else a program has imported makes no difference."""
    taking_part = {kind.__module__.partition(".")[0] for module in _modules(handle) for kind in _kinds(module)}
    packages = (*ALWAYS, *(name for name in OF_POLICIES if name in taking_part), "numba")
    found = {"python": platform.python_version(), **package_versions(*packages)}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def _modules(handle: Handle) -> list[Any]:
    """The object that was attached to, and those with an override."""
    owner = handle.engine.owner
    return [owner, *(module for module, _ in handle.engine.adapter.overrides(owner))]


def _kinds(module: Any) -> Iterator[type]:
    """The classes of a module and of all its parts, with those that they inherit from."""
    for part in module.modules() if isinstance(module, torch.nn.Module) else [module]:
        yield from type(part).__mro__


def _sizes(value: Any, depth: int = 4) -> Any:
    """What of a policy's settings costs time: numbers (steps, sizes, switches) and shapes of features, cameras and all,
    whatever they lie in; None where there is nothing of the kind. Names and paths do not cost time.

    >>> _sizes({"steps": 10, "name": "mine", "image": {"shape": (3, 64, 64), "kind": "visual"}, "tags": ["a"]})
    {'image': {'shape': [3, 64, 64]}, 'steps': 10}
    """
    if isinstance(value, (bool, int, float)):
        return value
    if depth == 0 or callable(value):  # settings are not nested deeper, and may know what they are the settings of
        return None
    if isinstance(value, (list, tuple)):
        found = [_sizes(one, depth - 1) for one in value]
        return found if any(one is not None for one in found) else None
    inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    sizes = {str(name): _sizes(one, depth - 1) for name, one in sorted(inside.items(), key=lambda item: str(item[0]))}
    return {name: one for name, one in sizes.items() if one is not None} or None


def processor() -> str:
    """The name of this machine's CPU."""
    cpuinfo = Path("/proc/cpuinfo")  # platform.processor() is empty on most Linux
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
