"""On what a benchmark was measured: said beside every result, so that numbers can be judged."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from keystone_robotics.profiling.fingerprint import processor


def describe(command: str) -> dict[str, str]:
    """Versions, processor, date, and the command that repeats the measurement."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": processor(),
        "python": platform.python_version(),
        **{package: _version(package) for package in ("torch", "numpy", "numba")},
        "threads": str(torch.get_num_threads()),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
