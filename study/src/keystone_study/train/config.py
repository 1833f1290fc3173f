"""The configuration of a training: everything that its result depends on."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_study.train.expert import Expert
from keystone_study.train.experts import find_expert

POLICIES = ("flow", "diffusion")


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of one training, checked.

    Attributes:
        benchmark: name.
        tasks: tasks that one policy learns together.
        regime: imperfection of the demonstrations.
        demonstrations: of each task.
        policy: class of policy, one of ``POLICIES``.
        iterations: of the optimiser.
        seed: of demonstrations, weights and batches.
    """

    benchmark: str
    tasks: tuple[str, ...]
    regime: str
    demonstrations: int
    policy: str
    iterations: int
    seed: int

    def __post_init__(self) -> None:
        expert = self.expert
        for task in self.tasks:
            _require(task, expert.benchmark.tasks(), f"{self.benchmark} has no task")
        _require(self.regime, expert.regimes, "unknown regime")
        _require(self.policy, POLICIES, "unknown policy")
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise KeystoneError(f"--tasks {' '.join(self.tasks)}: expected at least one task, each once")
        for name, least in (("demonstrations", 1), ("iterations", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise KeystoneError(f"--{name} {getattr(self, name)}: expected {least} or more")

    @property
    def expert(self) -> Expert:
        """The expert of the benchmark."""
        return find_expert(self.benchmark)

    def command(self, out: Path, demos: Path | None = None) -> str:
        """The command line of this training. Folders are written as they were given; of an absolute path only the name, which
        is all of it that means something on another machine.
        """
        words = ["keystone", "train", "--env", self.benchmark, "--tasks", *self.tasks, "--regime", self.regime]
        words += ["--demonstrations", str(self.demonstrations), "--policy", self.policy]
        words += ["--iterations", str(self.iterations), "--seed", str(self.seed)]
        words += ["--demos", _portable(demos)] if demos else []
        return shlex.join([*words, "--out", _portable(out)])

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "tasks": list(self.tasks)}

    def differences(self, record: dict[str, Any]) -> list[str]:
        """How a stored record differs, for instance ``seed (1 there, 0 here)``."""
        mine = self.record()
        names = [field.name for field in fields(self) if record.get(field.name) != mine[field.name]]
        return [f"{name} ({_shown(record.get(name))} there, {_shown(mine[name])} here)" for name in names]


def _require(name: str, known: tuple[str, ...], complaint: str) -> None:
    if name not in known:
        raise KeystoneError(f"{complaint} {name!r}: {nearest_name(name, known)}")


def _portable(folder: Path) -> str:
    return folder.name if folder.is_absolute() else str(folder)


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
