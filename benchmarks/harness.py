"""What all benchmarks share: the command line, the description of the machine, and writing results atomically."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from keystone_robotics.files import atomic_write
from keystone_robotics.versions import package_versions

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"


def parse_quick(name: str, purpose: str | None) -> bool:
    """Read the command line of a benchmark: ``--quick`` or nothing."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=purpose)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases, to benchmarks/results/quick")
    return bool(parser.parse_args().quick)


def run(name: str, rows: Callable[[bool], Iterable[dict[str, Any]]], quick: bool) -> Path:
    """Measure on one thread, and write ``{"machine": …, "rows": […]}`` as ``name``.json."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": describe_machine(command_of(name, quick)), "rows": []}
    for row in rows(quick):
        print(json.dumps(row))
        found["rows"].append(row)
    path = write_json(name, found, quick)
    print(f"wrote {path}")
    return path


def command_of(name: str, quick: bool) -> str:
    """The command that repeats a benchmark."""
    return f"python -m benchmarks.{name}{' --quick' if quick else ''}"


def describe_machine(command: str) -> dict[str, str]:
    """Versions, processor, date, and the command that repeats the measurement."""
    import torch

    from keystone_robotics.profiling.fingerprint import processor

    packages = ("torch", "numpy", "numba")
    found = package_versions(*packages)
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": processor(),
        "python": platform.python_version(),
        **{package: found.get(package, "not installed") for package in packages},
        "threads": str(torch.get_num_threads()),
    }


def results_folder(quick: bool) -> Path:
    """benchmarks/results, or its subfolder ``quick``; created if it does not exist."""
    folder = RESULTS / "quick" if quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_json(name: str, found: Any, quick: bool) -> Path:
    """Write a result as ``name``.json; its path."""
    path = results_folder(quick) / f"{name}.json"
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(found, indent=1) + "\n")
    return path
