"""On what a benchmark was measured: said beside every result, so that numbers can be judged."""

from __future__ import annotations

import datetime
import platform

import torch

from keystone_robotics.profiling.fingerprint import processor
from keystone_robotics.versions import package_versions


def describe(command: str) -> dict[str, str]:
    """Versions, processor, date, and the command that repeats the measurement."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": processor(),
        "python": platform.python_version(),
        **dict.fromkeys(("torch", "numpy", "numba"), "not installed"),
        **package_versions("torch", "numpy", "numba"),
        "threads": str(torch.get_num_threads()),
    }
