"""The files of an experiment: its results as JSON, and the same as a page of tables."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keystone_robotics.evaluate.run import versions
from keystone_robotics.files import write_file
from keystone_study.reproduce.workloads import WORKLOADS, Workload

LONGEST_NAME = 100  #: of the workloads in a file's name: file systems end at 255 bytes
TRIAL = "**A trial run on a few episodes: nothing can be concluded from these numbers.**"


@dataclass(frozen=True)
class Page:
    """What ``keystone reproduce NAME`` writes.

    Attributes:
        name: of the experiment.
        title: of the page.
        legend: says what the tables show.
        workloads: of the whole experiment.
    """

    name: str
    title: str
    legend: str
    workloads: tuple[str, ...]

    def write(
        self, out: Path, workloads: Sequence[str], quick: bool, found: Mapping[str, Any], parts: Sequence[str]
    ) -> Path:
        """Write ``NAME.json`` and ``NAME.md``, or ``NAME-WORKLOADS…`` for some workloads.

        Args:
            out: folder.
            workloads: names.
            quick: a test run.
            found: of the JSON file, after command, versions and legend.
            parts: of the page, after the legend.

        Returns:
            The path of the page.
        """
        name, command = file_and_command(self.name, workloads, tuple(workloads) != self.workloads, quick)
        head = {"command": command, "versions": versions(), "quick": quick, "legend": self.legend}
        write_file(out / f"{name}.json", json.dumps({**head, **found}, indent=1, default=asdict) + "\n")
        parts = [f"# {self.title}", f"Made by `{command}`. {self.legend}", *[TRIAL] * quick, *parts]
        write_file(out / f"{name}.md", "\n\n".join(part.rstrip("\n") for part in parts) + "\n")
        return out / f"{name}.md"


def file_and_command(experiment: str, workloads: Sequence[str], some: bool, quick: bool) -> tuple[str, str]:
    """The name of the files, and the command. Results of some workloads must not overwrite those of the whole experiment."""
    command = f"keystone reproduce {experiment}" + (" --quick" if quick else "")
    if not some:
        return experiment, command
    joined = "-".join(workloads)
    if len(joined) > LONGEST_NAME:
        joined = f"{len(workloads)}-workloads-{zlib.crc32(joined.encode()):08x}"
    return f"{experiment}-{joined}", f"{command} --workloads {' '.join(workloads)}"


def find_workloads(names: Sequence[str], quick: bool) -> list[Workload]:
    """The workloads of these names, or their test runs."""
    return [WORKLOADS[name].quick() if quick else WORKLOADS[name] for name in names]
