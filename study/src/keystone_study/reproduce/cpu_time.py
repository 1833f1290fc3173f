"""How much CPU time a command took, in all of its runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import psutil

from keystone_robotics.files import write_file


@contextlib.contextmanager
def counted_cpu_time(path: Path, command: str) -> Iterator[None]:
    """Within this context, CPU time of this process and its workers on this machine is added to the command's in ``path``.

    Interrupted runs count, killed ones do not.
    """
    before = _seconds()
    try:
        yield
    finally:
        stored = _stored(path)
        write_file(
            path, json.dumps({**stored, command: stored.get(command, 0.0) + _seconds() - before}, indent=1) + "\n"
        )


def add_cpu_hours(result: Path, path: Path, command: str) -> None:
    """Write ``cpu_hours`` into a result."""
    found = json.loads(result.read_text())
    write_file(result, json.dumps({**found, "cpu_hours": round(_stored(path)[command] / 3600, 6)}, indent=1) + "\n")


def _stored(path: Path) -> dict[str, float]:
    return json.loads(path.read_text()) if path.exists() else {}


def _seconds() -> float:
    """CPU time of this process and all below it, alive or ended. (`resource` leaves out workers: they are children of the
    server that forks them, which ends after this process.)
    """
    here = psutil.Process()
    total = 0.0
    for process in (here, *here.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total
