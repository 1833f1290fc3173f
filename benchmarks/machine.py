"""On what a benchmark was measured: said beside every result, so that numbers can be judged."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe(command: str) -> dict[str, str]:
    """Versions, processor, date, and the command that repeats the measurement."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": _processor(),
        "python": platform.python_version(),
        **{package: _version(package) for package in ("torch", "numpy", "numba")},
        "threads": "1",
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")  # platform.processor() is empty on most Linux
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
