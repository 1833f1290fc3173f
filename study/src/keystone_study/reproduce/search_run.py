"""``keystone reproduce search``: all contenders on the states for choosing; the best, and two methods of others, reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from keystone_robotics.compare.comparison import rate_of
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import versions
from keystone_robotics.files import write_file
from keystone_robotics.spec import Spec
from keystone_robotics.tables import as_markdown
from keystone_study.reproduce.analysis import Difference
from keystone_study.reproduce.main import FREE, result_of
from keystone_study.reproduce.page import TRIAL, find_workloads
from keystone_study.reproduce.search import (
    CONTENDERS,
    PARTIAL,
    REFERENCES,
    RESCALED,
    TICKETS,
    Contender,
    choose_contender,
    difference,
    roll_out,
)
from keystone_study.reproduce.tables import points
from keystone_study.reproduce.workloads import WORKLOADS, Workload

#: Policies and states on which contenders are chosen, and workloads on which the best are reported.
DEVELOPMENT = ("choosing-metaworld", "choosing-pusht")
REPORTED = ("metaworld-mixed", "metaworld-noisy", "metaworld-clean", "pusht")
#: The rule of the product that contenders are compared with at about the same latency.
BASE = "core-mean:k=16,steps=3"
STATES = 16  #: of each task of Meta-World; PushT has one task
OWN_STEPS = 10  #: denoising steps of the study's flow policies


@dataclass(frozen=True)
class Row:
    """One contender on one workload.

    Attributes:
        contender: its name.
        family: what it tries.
        evaluations: of the network: one after the other, all together.
        rate: share of successes.
        episodes: number of episodes.
        to_base: difference to `BASE` on the states for choosing, to the best free change on the reported ones; None for itself.
    """

    contender: str
    family: str
    evaluations: tuple[int, int]
    rate: float
    episodes: int
    to_base: Difference | None


def reproduce_search(
    out: Path, executor: Executor, console: Console, workloads: Sequence[str] = REPORTED, quick: bool = False
) -> Path:
    """Write ``search.json`` and ``search.md``. Episodes are stored in ``out/runs``, and shared with the main study."""
    tables: dict[str, list[Row]] = {}
    for name in DEVELOPMENT:
        workload = WORKLOADS[name]
        settings = _few(workload.choosing()) if quick else _states(workload)
        everybody = (*REFERENCES, *(CONTENDERS[-2:] if quick else CONTENDERS))
        tables[name] = _rows(everybody, settings, BASE, out / "runs" / "search" / name, executor, console)
    winner, partial = (_best(tables, group) for group in (CONTENDERS, PARTIAL))
    for workload in find_workloads(workloads, quick):
        folder = out / "runs" / workload.name
        free = result_of(workload, out, executor, console).choices[FREE].arm
        chosen = [
            choose_contender(group, workload.choosing(), folder / "search-choosing", executor, console)
            for group in ((RESCALED[:2], TICKETS[:2]) if quick else (RESCALED, TICKETS))
        ]
        compared = (_of_arm("the best free change", free), _of_arm("the product's rule", BASE))
        everybody = tuple({one.name: one for one in (*compared, winner, partial, *chosen)}.values())
        tables[workload.name] = _rows(
            everybody, workload.reported(), free, folder / "search-reported", executor, console
        )
    command = "keystone reproduce search" + (" --quick" if quick else "")
    found = {
        "command": command,
        "versions": versions(),
        "quick": quick,
        "winner": winner.name,
        "tables": {name: [asdict(row) for row in rows] for name, rows in tables.items()},
    }
    write_file(out / "search.json", json.dumps(found, indent=1) + "\n")
    write_file(out / "search.md", page(tables, winner, command, quick))
    return out / "search.md"


def _of_arm(family: str, arm: str) -> Contender:
    """The policy's own sampler; evaluations are of as many rounds as execute all steps."""
    spec = Spec.parse(arm)
    steps = (spec.steps or OWN_STEPS) * (2 if spec.execute else 1)
    return Contender(family, arm, evaluations=(steps, steps * int(spec.k)))


def _states(workload: Workload) -> EvaluationConfig:
    settings = workload.choosing()
    return replace(settings, episodes=STATES if len(settings.tasks) > 1 else 6 * STATES, shard=STATES)


def _few(settings: EvaluationConfig) -> EvaluationConfig:
    return replace(settings, tasks=settings.tasks[:1], episodes=2, shard=2)


def _rows(
    contenders: Sequence[Contender],
    settings: EvaluationConfig,
    base: str,
    folder: Path,
    executor: Executor,
    console: Console,
) -> list[Row]:
    outcomes = roll_out(contenders, settings, folder, executor, console)
    rows = []
    for one in contenders:
        rate = rate_of(outcomes[one.name])
        apart = None if one.name == base else difference(outcomes, one.name, base)
        rows.append(Row(one.name, one.family, one.evaluations, rate.rate, rate.episodes, apart))
    return rows


def _best(tables: dict[str, list[Row]], group: Sequence[Contender]) -> Contender:
    """The highest mean rate over the development workloads."""

    def mean(one: Contender) -> float:
        rates = [row.rate for name in DEVELOPMENT for row in tables[name] if row.contender == one.name]
        return sum(rates) / len(rates) if rates else -1.0

    return max(group, key=mean)


def page(tables: dict[str, list[Row]], winner: Contender, command: str, quick: bool) -> str:
    """The results as Markdown."""
    about = (
        f"Made by `{command}`. Contenders were tried on the policies, tasks and states for choosing. The one with the highest "
        f"mean there (`{winner.name}`), the best way to denoise partially, score rescaling and a constant noise (parameters "
        "chosen for each policy on other states) are reported on workloads of the main study, against its best free change. "
        "*Evaluations*: of the network in one round, one after the other / all together (latency on a parallel device follows "
        "the first, work the second). Δ in points with paired 95 % intervals."
    )
    parts = ["# What K candidates could buy beyond free changes: a bounded search", about]
    if quick:
        parts.append(TRIAL)
    for name, rows in tables.items():
        base = f"`{BASE}`" if name in DEVELOPMENT else "the best free change"
        heading = ["family", "contender", "evaluations", "success, %", "n", f"Δ to {base}"]
        lines = [
            [one.family, f"`{one.contender}`", f"{one.evaluations[0]} / {one.evaluations[1]}", f"{100 * one.rate:.1f}",
             str(one.episodes), points(one.to_base)]
            for one in sorted(rows, key=lambda row: -row.rate)
        ]  # fmt: skip
        parts.append(f"## {WORKLOADS[name].title}\n\n{as_markdown([heading, *lines])}")
    return "\n\n".join(parts) + "\n"
