"""A whole training: collect, cut, fit, save. Stopped at any point, the same call goes on from there."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError

from keystone_robotics import __version__
from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import written_whole
from keystone_robotics.policies.load import RECORD
from keystone_study.train.collect import Collection, collect
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.experts import Expert
from keystone_study.train.optimise import Learner, Schedule, optimise
from keystone_study.train.plan import Plan
from keystone_study.train.progress import Tell, progress_bar

WORK = "work"  #: inside the policy's folder: what is needed until it is finished
PLAN = "plan.json"
CHECKPOINT = "checkpoint.pt"

Bar = Callable[[str, int], AbstractContextManager[Tell]]


class Recipe(Learner, Protocol):
    """A class of policies and how it is trained; made of demonstrations, their expert and a seed."""

    learning_rate: float
    batch: int
    packages: tuple[str, ...]

    def save(self, folder: Path) -> None:
        """Write the trained policy into a folder."""


def run_training(plan: Plan, out: Path, demos: Path | None = None, bar: Bar = progress_bar) -> bool:
    """Train a policy into the folder ``out``, or go on with that; False if it was finished already.

    Args:
        plan: what to train.
        out: the policy's folder; work files go to ``work`` in it.
        demos: folder of demonstrations, to share them between trainings; default ``work/demos`` in ``out``.
        bar: makes a progress bar from a title and a total.

    Raises:
        KeystoneError: if the folder holds something else, or cannot be written to.
    """
    try:
        if not _claim(plan, out):
            return False
        found = _demonstrate(plan, demos or out / WORK / "demos", bar)
        together = [one for collection in found.values() for one in collection.demonstrations]
        recipe = make_recipe(plan.policy, together, plan.expert, plan.seed)
        schedule = Schedule(iterations=plan.iterations, batch=recipe.batch, learning_rate=recipe.learning_rate)
        with bar(f"training {plan.policy}", plan.iterations) as tell:
            loss = optimise(recipe, schedule, plan.seed, out / WORK / CHECKPOINT, tell)
        recipe.save(out)
        _write_json(out / RECORD, _record(plan, out, recipe, found, loss))  # last: it says that all is there
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


def _claim(plan: Plan, out: Path) -> bool:
    """Make the folder ours; False if the plan is carried out already.

    Raises:
        KeystoneError: if something else is or was being trained there.
    """
    if out.exists() and not out.is_dir():
        raise KeystoneError(f"--out {out} is a file: expected a folder, or a name for a new one")
    for path in (out / RECORD, out / WORK / PLAN):
        if not path.is_file():
            continue
        try:
            there = plan.differences(json.loads(path.read_text()))
        except (ValueError, AttributeError) as error:
            raise KeystoneError(f"{path} cannot be read ({error}): choose another --out") from error
        if there:
            raise KeystoneError(f"{out} is another training's: {', '.join(there)}; choose another --out")
        if path.name == RECORD:
            return False
    if (out / "config.json").exists() and not (out / WORK / PLAN).is_file():
        raise KeystoneError(f"{out} holds a policy that `keystone train` did not make: choose another --out")
    (out / WORK).mkdir(parents=True, exist_ok=True)
    _write_json(out / WORK / PLAN, plan.record())
    return True


def _demonstrate(plan: Plan, demos: Path, bar: Bar) -> dict[str, Collection]:
    """The demonstrations of each task."""
    found = {}
    for task in plan.tasks:
        with bar(f"demonstrating {task}", plan.demonstrations) as tell:
            found[task] = collect(
                plan.expert, task, plan.regime, plan.seed, plan.demonstrations, demos / plan.benchmark, tell
            )
    return found


def _record(plan: Plan, out: Path, recipe: Recipe, found: dict[str, Collection], loss: float) -> dict[str, Any]:
    """How the policy was made, without a word about the machine."""
    packages = ("numpy", "torch", *plan.expert.packages, *recipe.packages)
    return {
        **plan.record(),
        "command": plan.command(out.resolve().name),
        "versions": {
            "keystone": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "expert_success": {task: round(collection.success_rate, 3) for task, collection in found.items()},
        "demonstrator": plan.expert.describe(plan.regime),
        "transitions": recipe.examples,
        "parameters": sum(weight.numel() for weight in recipe.module.parameters()),
        "loss": round(loss, 5),
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with written_whole(path) as draft:
        draft.write_text(json.dumps(content, indent=2) + "\n")
