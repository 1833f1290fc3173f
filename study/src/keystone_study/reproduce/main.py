"""The main study of one workload: choose free changes and K candidates on some states, compare them on others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from keystone_robotics.compare.comparison import Contrast, Rate, compare, rate_of
from keystone_robotics.compare.multiple import holm
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.latency import measure_latencies
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.files import write_file
from keystone_robotics.policies import load_agent
from keystone_robotics.spec import Spec
from keystone_study.reproduce.analysis import Difference
from keystone_study.reproduce.best_arm import BestArm, choose
from keystone_study.reproduce.grids import (
    AS_IT_IS,
    COOLED,
    FIXED,
    candidates_against_steps,
    free_changes,
    with_candidates,
)
from keystone_study.reproduce.workloads import Workload

#: Groups of arms that something is chosen from.
FREE, CANDIDATES, NO_SLOWER = "free change", "K candidates", "K candidates, no slower"


@dataclass(frozen=True)
class Arm:
    """One arm on the reported states.

    Attributes:
        name: its text.
        rate: share of successes, mean over tasks.
        by_task: rate of each task.
        latency: time of one round relative to the policy as it is, CPU, batch size 1.
        per_step: the same for one executed step: an arm that executes half of the steps has twice the rounds.
    """

    name: str
    rate: Rate
    by_task: dict[str, float]
    latency: float
    per_step: float


@dataclass(frozen=True)
class MainResult:
    """The main study on one workload.

    Attributes:
        workload: which.
        tasks: their names.
        choices: by group, made on other states than those reported.
        afterwards: the cooled sample, or the policy as it is, that did best on the reported states: chosen on what is reported.
        arms: all arms on the reported states.
        differences: (arm, arm it is compared with, difference).
    """

    workload: Workload
    tasks: tuple[str, ...]
    choices: dict[str, BestArm]
    afterwards: str
    arms: tuple[Arm, ...]
    differences: tuple[tuple[str, str, Difference], ...]

    def arm(self, name: str) -> Arm:
        return next(one for one in self.arms if one.name == name)

    def difference(self, arm: str, base: str) -> Difference | None:
        """None for an arm and itself."""
        return next((value for one, other, value in self.differences if (one, other) == (arm, base)), None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything but the workload, which is known by its name."""
        return {**asdict(self), "workload": self.workload.name}

    @classmethod
    def from_dict(cls, stored: dict[str, Any], workload: Workload) -> MainResult:
        """What `as_dict` wrote, after JSON."""
        return cls(
            workload=workload,
            tasks=tuple(stored["tasks"]),
            choices={name: BestArm(**one) for name, one in stored["choices"].items()},
            afterwards=stored["afterwards"],
            arms=tuple(Arm(**{**one, "rate": _rate(one["rate"])}) for one in stored["arms"]),
            differences=tuple(
                (arm, base, Difference(**{**one, "interval": tuple(one["interval"])}))
                for arm, base, one in stored["differences"]
            ),
        )


def _rate(stored: dict[str, Any]) -> Rate:
    repeats = stored["repeats"]
    return Rate(**{**stored, "interval": tuple(stored["interval"]), "repeats": repeats and tuple(repeats)})


def result_of(workload: Workload, out: Path, executor: Executor, console: Console) -> MainResult:
    """The result of a workload: as stored in ``out/main``, else rolled out and stored there."""
    path = out / "main" / f"{workload.name}.json"
    if path.exists():
        return MainResult.from_dict(json.loads(path.read_text()), workload)
    workload.check_policy()
    found = run_workload(workload, out / "runs" / workload.name, executor, console)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(found.as_dict(), indent=1) + "\n")
    return found


def run_workload(workload: Workload, folder: Path, executor: Executor, console: Console) -> MainResult:
    """Choose, then report. Everything is stored in ``folder`` and rolled out once."""
    choosing, reported = workload.choosing(), workload.reported()
    execute = load_agent(workload.policy).execute
    grid = candidates_against_steps()
    free, several = free_changes(execute), with_candidates(execute)
    every = (Spec.parse(AS_IT_IS), *(Spec.parse(arm) for arm in FIXED), *COOLED, *grid, *free, *several)
    latency = stored_latencies(folder / "latency.json", executor, reported, every)
    no_slower = [arm for arm in several if latency[str(arm)] * _rounds(arm, execute) <= 1.0]
    groups = {FREE: free, CANDIDATES: several, **({NO_SLOWER: no_slower} if no_slower else {})}
    choices = choose(choosing, groups, folder / "choosing", executor, console)
    chosen = [Spec.parse(one.arm) for one in choices.values()]
    arms = tuple(dict.fromkeys((every[0], *chosen, *(Spec.parse(arm) for arm in FIXED), *COOLED, *grid)))
    rows = evaluate(replace(reported, arms=arms), folder / "reported", executor, console).episodes
    outcomes = {str(arm): outcomes_of(str(arm), [row for row in rows if row.arm == str(arm)]) for arm in arms}
    return analyse_main(workload, choices, outcomes, latency, execute)


def _rounds(arm: Spec, execute: int) -> float:
    """Rounds for one round of the policy as it is, which executes ``execute`` steps of a chunk."""
    return execute / (arm.most_steps or execute)


def stored_latencies(
    path: Path, executor: Executor, settings: EvaluationConfig, arms: Sequence[Spec]
) -> dict[str, float]:
    """Measured once: what is chosen depends on it, and must be the same when a run is resumed."""
    if path.exists():
        stored: dict[str, float] = json.loads(path.read_text())
        if all(str(arm) in stored for arm in arms):
            return stored
    path.parent.mkdir(parents=True, exist_ok=True)
    # CPU time: the machine may be busy, and these policies compute on one thread.
    measured = measure_latencies(executor, settings, arms, time.thread_time)
    found = {str(arm): measured.round_ratio(arm) for arm in arms}
    write_file(path, json.dumps(found, indent=1) + "\n")
    return found


def analyse_main(
    workload: Workload,
    choices: dict[str, BestArm],
    outcomes: dict[str, Outcomes],
    latency: dict[str, float],
    execute: int,
) -> MainResult:
    """Rates of all arms, and the differences that the claims are about."""
    rates = {name: rate_of(one) for name, one in outcomes.items()}
    free = choices[FREE].arm
    cooled = [AS_IT_IS, *(str(arm) for arm in COOLED)]
    afterwards = max(cooled, key=lambda name: rates[name].rate)
    pairs = [(name, AS_IT_IS) for name in outcomes]
    pairs += [(name, free) for name in outcomes] + [(name, afterwards) for name in outcomes]
    found = {
        pair: compare(outcomes[pair[1]], outcomes[pair[0]], "require").overall for pair in pairs if pair[0] != pair[1]
    }
    return MainResult(
        workload=workload,
        tasks=next(iter(outcomes.values())).tasks,
        choices=choices,
        afterwards=afterwards,
        arms=tuple(
            Arm(name, rates[name], _by_task(one), latency[name], latency[name] * _rounds(Spec.parse(name), execute))
            for name, one in outcomes.items()
        ),
        differences=tuple(
            (*pair, Difference(one.difference, one.interval, one.p, p_holm))
            for base in dict.fromkeys(pair[1] for pair in found)
            for (pair, one), p_holm in _corrected({pair: one for pair, one in found.items() if pair[1] == base})
        ),
    )


def _corrected(found: dict[tuple[str, str], Contrast]) -> Iterator[tuple[tuple[tuple[str, str], Contrast], float]]:
    """With p corrected for the number of arms that are compared with the same one."""
    return zip(found.items(), holm([one.p for one in found.values()]), strict=True)


def _by_task(outcomes: Outcomes) -> dict[str, float]:
    by_task: dict[str, list[bool]] = {}
    for one in outcomes.episodes:
        by_task.setdefault(one.task, []).append(one.success)
    return {task: sum(values) / len(values) for task, values in by_task.items()}
