"""What was measured so far, on disk after every round, so that an interrupted run can go on."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import written_whole
from keystone_robotics.profiling.memory import Peak


class Facts(NamedTuple):
    """What only the run that measured knows.

    Attributes:
        path: on which candidates were drawn, see `keystone_robotics.handle.Handle.path`.
        mixed: see `keystone_robotics.profiling.phases.Watch`.
        date: of the last measurement, as in 2026-01-31.
    """

    path: str
    mixed: bool
    date: str


class Journal:
    """Measurements of one run: times by (clients, K) and round, memory by K, where memory ended, and at the end the facts.

    Args:
        path: of the file; None keeps everything in memory alone.
        header: what the run measures. A file with another header belongs to another run.
        fresh: begin anew whatever is there.

    Raises:
        KeystoneError: if the file belongs to another run.
    """

    def __init__(self, path: Path | None, header: dict[str, Any], fresh: bool = False) -> None:
        self.path = path
        self.times: dict[tuple[int, int], dict[int, dict[str, float]]] = {}
        self.peaks: dict[int, Peak | None] = {}
        self.stopped: int | None = None
        self.facts: Facts | None = None
        self._begun: Counter[int] = Counter()
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            entries = [] if fresh or not path.exists() else _whole_lines(path)
            if entries:
                _compare(path, json.loads(json.dumps(header)), entries[0])
                for entry in entries[1:]:
                    self._take(entry)
            # Written again, because a line that was interrupted would spoil the next.
            with written_whole(path) as draft:
                draft.write_text("".join(json.dumps(entry) + "\n" for entry in [header, *entries[1:]]))
        except OSError as error:
            raise KeystoneError(f"cannot write {path}: {error.strerror}") from None

    @property
    def rounds(self) -> int:
        """How many rounds of everything that was measured at all are complete, from the first on."""
        fit = [rounds for (_, k), rounds in self.times.items() if self.stopped is None or k < self.stopped]
        return min(map(len, fit), default=0)

    def has(self, number: int, clients: int, k: int) -> bool:
        """Whether this round was measured."""
        return number in self.times.get((clients, k), {})

    def add_time(self, number: int, clients: int, k: int, milliseconds: dict[str, float]) -> None:
        self._keep({"round": number, "clients": clients, "k": k, "ms": milliseconds})

    def add_peak(self, k: int, peak: Peak | None) -> None:
        self._keep({"peak": k, "mib": peak})

    @contextlib.contextmanager
    def trying(self, k: int) -> Iterator[None]:
        """The first rounds with K candidates, in which a system that is out of memory may kill the process."""
        self._keep({"trying": k})
        try:
            yield
        finally:
            self._keep({"tried": k})

    def killed(self) -> int | None:
        """The K in whose first rounds the process was killed, if that happened twice: once may have been anybody."""
        return next((k for k, times in self._begun.items() if times > 1), None)

    def stop(self, k: int) -> None:
        """K candidates, and more, do not fit into memory."""
        self._keep({"stopped": k})

    def conclude(self, facts: Facts) -> None:
        """All that was planned is measured."""
        self._keep({"facts": facts._asdict()})

    def _keep(self, entry: dict[str, Any]) -> None:
        self._take(entry)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(entry) + "\n")

    def _take(self, entry: dict[str, Any]) -> None:
        if "ms" in entry:
            self.times.setdefault((entry["clients"], entry["k"]), {})[entry["round"]] = entry["ms"]
        elif "peak" in entry:
            self.peaks[entry["peak"]] = None if entry["mib"] is None else Peak(*entry["mib"])
        elif "trying" in entry:
            self._begun[entry["trying"]] += 1
        elif "tried" in entry:
            del self._begun[entry["tried"]]
        elif "facts" in entry:
            self.facts = Facts(**entry["facts"])
        else:
            self.stopped = entry["stopped"]


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """All entries but a last one that was interrupted."""
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def _compare(path: Path, header: dict[str, Any], found: dict[str, Any]) -> None:
    for name, value in header.items():
        if found.get(name) != value:
            raise KeystoneError(
                f"{path.parent} holds a profile with {name} {found.get(name)!r}, and this one has {value!r}: choose another "
                "folder, or measure anew (--fresh)"
            )
