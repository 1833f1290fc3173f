"""What a benchmark has measured so far, on disk, so that an interrupted run goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from keystone_robotics.files import written_whole

ROOT = Path(__file__).parents[1]
#: Where unfinished runs are kept.
WORK = ROOT / "out" / "bench"


def code_version() -> str:
    """A hash of the code that is measured and that measures: results of another version are not mixed in."""
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "src" / "keystone").rglob("*.py")]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class Partial:
    """Measurements of one run by key. A run of another version of the code begins anew.

    Args:
        name: of the benchmark.
        quick: the rough version, which is a run of its own.
        version: of the code; default `code_version`.
    """

    def __init__(self, name: str, quick: bool = False, version: str = "", folder: Path = WORK) -> None:
        self.path = folder / f"{name}{'-quick' if quick else ''}.jsonl"
        version = version or code_version()
        lines = self.path.read_text().rpartition("\n")[0].splitlines() if self.path.exists() else []
        entries = [json.loads(line) for line in lines]
        if not entries or entries[0] != {"version": version}:
            entries = [{"version": version}]
        self._known: dict[str, Any] = {entry["key"]: entry["found"] for entry in entries[1:]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._version = version
        self._write()  # again, because a line that was interrupted would spoil the next

    def _write(self) -> None:
        entries = [{"version": self._version}, *({"key": key, "found": found} for key, found in self._known.items())]
        with written_whole(self.path) as draft:
            draft.write_text("".join(json.dumps(entry) + "\n" for entry in entries))

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __call__(self, key: str, measure: Callable[[], Any]) -> Any:
        """What was found for this key; measured if it is not known yet."""
        if key not in self._known:
            self._known[key] = measure()
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, "found": self._known[key]}) + "\n")
        return self._known[key]

    def forget(self, keys: Iterable[str]) -> None:
        """These are to be measured anew."""
        for key in keys:
            self._known.pop(key, None)
        self._write()

    def finish(self) -> None:
        """The run is complete: the next one begins anew."""
        self.path.unlink(missing_ok=True)
