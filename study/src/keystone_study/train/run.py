"""A whole training: collect, cut, train, save. Interrupted at any point, the same call resumes."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError

from keystone_robotics import __version__
from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import atomic_write
from keystone_robotics.policies.load import RECORD
from keystone_robotics.versions import package_versions
from keystone_study.train.collect import Collection, collect
from keystone_study.train.config import TrainingConfig
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.expert import Expert
from keystone_study.train.optimise import Learner, Schedule, optimise
from keystone_study.train.progress import ProgressCallback, progress_bar

WORK = "work"  #: subfolder for temporary files
CONFIG_FILE = "plan.json"
CHECKPOINT = "checkpoint.pt"

Bar = Callable[[str, int], AbstractContextManager[ProgressCallback]]


class Recipe(Learner, Protocol):
    """A class of policies and how it is trained; made of demonstrations, their expert and a seed."""

    learning_rate: float
    batch: int
    packages: tuple[str, ...]

    def save(self, folder: Path) -> None:
        """Write the trained policy into a folder."""


def run_training(config: TrainingConfig, out: Path, demos: Path | None = None, bar: Bar = progress_bar) -> bool:
    """Train a policy into the folder ``out``, or resume; False if it was finished already.

    Args:
        config: what to train.
        out: the policy's folder; work files go to ``work`` in it.
        demos: folder of demonstrations, to share them between trainings; default ``work/demos`` in ``out``.
        bar: makes a progress bar from a title and a total.

    Raises:
        KeystoneError: if the folder holds something else, or cannot be written to.
    """
    try:
        if not _prepare_folder(config, out):
            return False
        found = collect_demonstrations(config, demos or out / WORK / "demos", bar)
        together = [one for collection in found.values() for one in collection.demonstrations]
        recipe = make_recipe(config.policy, together, config.expert, config.seed)
        schedule = Schedule(iterations=config.iterations, batch=recipe.batch, learning_rate=recipe.learning_rate)
        with bar(f"training {config.policy}", config.iterations) as report:
            loss = optimise(recipe, schedule, config.seed, out / WORK / CHECKPOINT, report)
        recipe.save(out)
        record = _record(config, config.command(out, demos), recipe, found, loss)
        _write_json(out / RECORD, record)  # last: marks the training as finished
    except (OSError, SafetensorError) as error:
        raise KeystoneError(f"{out} cannot be written to ({error}); what is there is kept, try again") from error
    return True


def make_recipe(policy: str, demonstrations: Sequence[Demonstration], expert: Expert, seed: int) -> Recipe:
    """The recipe for a class of policies, its weights untrained."""
    if policy == "flow":
        from keystone_study.train.flow_recipe import FlowRecipe

        return FlowRecipe(demonstrations, expert, seed)
    from keystone_study.train.diffusion_recipe import DiffusionRecipe

    return DiffusionRecipe(demonstrations, expert, seed)


def _prepare_folder(config: TrainingConfig, out: Path) -> bool:
    """Create the folder, or check that it belongs to this training; False if that is finished.

    Raises:
        KeystoneError: if something else is or was being trained there.
    """
    if out.exists() and not out.is_dir():
        raise KeystoneError(f"--out {out} is a file: expected a folder, or a name for a new one")
    for path in (out / RECORD, out / WORK / CONFIG_FILE):
        if not path.is_file():
            continue
        try:
            there = config.differences(json.loads(path.read_text()))
        except (ValueError, AttributeError) as error:
            raise KeystoneError(f"{path} cannot be read ({error}): choose another --out") from error
        if there:
            raise KeystoneError(f"{out} belongs to another training: {', '.join(there)}; choose another --out")
        if path.name == RECORD:
            return False
    if (out / "config.json").exists() and not (out / WORK / CONFIG_FILE).is_file():
        raise KeystoneError(f"{out} holds a policy that `keystone train` did not make: choose another --out")
    (out / WORK).mkdir(parents=True, exist_ok=True)
    _write_json(out / WORK / CONFIG_FILE, config.record())
    return True


def collect_demonstrations(config: TrainingConfig, demos: Path, bar: Bar) -> dict[str, Collection]:
    """The demonstrations of each task."""
    found = {}
    for task in config.tasks:
        with bar(f"demonstrating {task}", config.demonstrations) as report:
            found[task] = collect(
                config.expert, task, config.regime, config.seed, config.demonstrations, demos / config.benchmark, report
            )
    return found


def _record(
    config: TrainingConfig, command: str, recipe: Recipe, found: dict[str, Collection], loss: float
) -> dict[str, Any]:
    """How the policy was made; nothing about the machine."""
    packages = ("numpy", "torch", *config.expert.packages, *recipe.packages)
    return {
        **config.record(),
        "command": command,
        "versions": {
            "keystone": __version__,
            "python": platform.python_version(),
            **package_versions(*packages),
        },
        "expert_success": {task: round(collection.success_rate, 3) for task, collection in found.items()},
        "demonstrator": config.expert.describe(config.regime),
        "transitions": recipe.examples,
        "parameters": sum(weight.numel() for weight in recipe.module.parameters()),
        "loss": round(loss, 5),
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(content, indent=2) + "\n")
