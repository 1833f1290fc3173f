"""``keystone reproduce adaptive``: adaptive horizon and adaptive K against fixed ones, on the workloads of the study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from keystone_robotics.compare.comparison import compare, rate_of
from keystone_robotics.compare.multiple import holm
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.spec import Spec
from keystone_robotics.tables import as_markdown
from keystone_study.reproduce.analysis import Difference
from keystone_study.reproduce.grids import AS_IT_IS
from keystone_study.reproduce.main import stored_latencies
from keystone_study.reproduce.page import Page, find_workloads
from keystone_study.reproduce.tables import points
from keystone_study.reproduce.workloads import WORKLOADS, Workload

ADAPTIVE_WORKLOADS = ("metaworld-mixed", "metaworld-noisy", "metaworld-clean", "pusht")
LIMITS = (0.3, 0.4, 0.5, 0.6, 0.7)  #: of the dispersion, of which one is chosen for each workload
FEW, MANY = 4, 16
#: The paper's rule: with the policies' own horizon, which is 8, and with the others that are compared.
PAPER = f"keystone:k={MANY}"
PAPERS = (*(f"{PAPER},execute={steps}" for steps in (2, 4)), PAPER)
HORIZONS = tuple(f"core-mean:k={MANY},execute={steps}" for steps in (2, 4, 8))
UNTUNED = f"core-mean:k={MANY},execute=2..8"  #: the default limit
FIXED_K = (f"core-mean:k={MANY}", f"core-mean:k={FEW}")


def adaptive_horizon(limit: float) -> str:
    """The arm that executes 2 to 8 steps, as many as the candidates agree on."""
    return str(Spec.parse(f"core-mean:k={MANY},execute=2..8:{limit}"))


def adaptive_k(limit: float) -> str:
    """The arm that draws 4 candidates, and 12 more where they disagree."""
    return str(Spec.parse(f"core-mean:k={FEW}..{MANY}:{limit}"))


ABOUT = (
    "*Adaptive horizon*: 2 to 8 steps of a chunk, as many as the candidates agree on. *Adaptive K*: 4 candidates, and 12 "
    f"more where they disagree. Limits are chosen on states of seed 0, among {', '.join(map(str, LIMITS))}: for the horizon "
    "the highest success, of equals the fewest rounds; for K the highest success of those that draw at most half of the "
    "candidates, or the fewest if none does. Rates are on other states. *Rounds*: calls of the policy in an episode, mean. "
    "*Fixed, at equal rounds*: success of `execute=2`, 4 and 8, interpolated over their rounds at those of the adaptive arm. "
    "*Steps*: executed per round. *Samples*: candidates per round, mean. *Latency*: CPU time of a round at batch size 1 "
    "relative to the policy as it is; for adaptive K where the few agree / where they disagree / expected at the measured "
    "share. Δ in points with paired 95 % intervals, the adaptive arm minus this one; **bold**: clear after Holm's correction."
)
PAGE = Page("adaptive", "Adaptive horizon and adaptive K", ABOUT, ADAPTIVE_WORKLOADS)


@dataclass(frozen=True)
class ArmRow:
    """One arm on the reported states.

    Attributes:
        arm: its text.
        rate: share of successes, mean over tasks.
        episodes: number of episodes.
        rounds: of an episode, mean: calls of the policy.
        steps: executed per round, mean.
        drawn: candidates per round, mean.
        latency: of one round; for adaptive K where the few agree, where they disagree, and expected.
        to_adaptive: the adaptive arm minus this one; None for itself.
    """

    arm: str
    rate: float
    episodes: int
    rounds: float
    steps: float
    drawn: float
    latency: tuple[float, ...]
    to_adaptive: Difference | None

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> ArmRow:
        """From the entry of ``adaptive.json``."""
        apart = stored["to_adaptive"] and Difference(**stored["to_adaptive"])
        return cls(**{**stored, "latency": tuple(stored["latency"]), "to_adaptive": apart})


def fixed_at_equal_rounds(rows: Sequence[ArmRow]) -> str:
    """Success in % that fixed horizons have at as many rounds as the adaptive one, the first row: between the two next to it,
    by a straight line; "–" for adaptive K, which does not change the horizon.
    """
    fixed = sorted((row.rounds, row.rate) for row in rows if row.arm in HORIZONS)
    return f"{100 * np.interp(rows[0].rounds, *np.transpose(fixed)):.1f}" if fixed else "–"


def reproduce_adaptive(
    out: Path, executor: Executor, console: Console, workloads: Sequence[str] = ADAPTIVE_WORKLOADS, quick: bool = False
) -> Path:
    """Write ``adaptive.json`` and ``adaptive.md``, or ``adaptive-WORKLOADS…`` for some. Interrupted, the same call resumes."""
    results = {
        one.name: run_workload(one, out / "runs" / one.name / "adaptive", executor, console, quick)
        for one in find_workloads(workloads, quick)
    }
    parts: list[str] = []
    for name, tables in results.items():
        parts += [f"## {WORKLOADS[name].title}", *(as_markdown(_table(title, rows)) for title, rows in tables.items())]
    return PAGE.write(out, workloads, quick, {"workloads": results}, parts)


def run_workload(
    workload: Workload, folder: Path, executor: Executor, console: Console, quick: bool
) -> dict[str, list[ArmRow]]:
    """Choose the limits, then report. Episodes and latencies are stored in ``folder``."""
    limits = LIMITS[1:3] if quick else LIMITS
    horizons, ks = [adaptive_horizon(limit) for limit in limits], [adaptive_k(limit) for limit in limits]
    tried = _roll_out(workload.choosing(), (*horizons, *ks), folder / "choosing", executor, console)
    horizon = max(horizons, key=lambda arm: (_rate(tried[arm]), -_mean(tried[arm], "rounds")))
    cheap = [arm for arm in ks if _mean(tried[arm], "drawn") <= MANY / 2]
    k = max(cheap, key=lambda arm: _rate(tried[arm])) if cheap else min(ks, key=lambda arm: _mean(tried[arm], "drawn"))
    groups = {"adaptive horizon": (horizon, *HORIZONS, *PAPERS), "adaptive K": (k, *FIXED_K)}
    if horizon != UNTUNED:
        groups["adaptive horizon"] += (UNTUNED,)
    arms = tuple(dict.fromkeys(arm for group in groups.values() for arm in group))
    rows = _roll_out(workload.reported(), arms, folder / "reported", executor, console)
    # Of one round: all and few candidates, and both draws of adaptive K. Where its few agree, the round is that of the few.
    timed = [Spec.parse(arm) for arm in (AS_IT_IS, PAPER, *FIXED_K, adaptive_k(0))]
    latency = stored_latencies(folder / "latency.json", executor, workload.reported(), timed)
    return {title: _rows(group, rows, latency) for title, group in groups.items()}


def _roll_out(
    settings: EvaluationConfig, arms: Sequence[str], folder: Path, executor: Executor, console: Console
) -> dict[str, list[EpisodeRecord]]:
    """The episodes of each arm; what is stored is not rolled out again."""
    given = replace(settings, arms=tuple(Spec.parse(arm) for arm in arms))
    episodes = evaluate(given, folder, executor, console).episodes
    return {arm: [one for one in episodes if one.arm == arm] for arm in arms}


def _outcomes(episodes: Sequence[EpisodeRecord]) -> Outcomes:
    return outcomes_of(episodes[0].arm, list(episodes))


def _rate(episodes: Sequence[EpisodeRecord]) -> float:
    return rate_of(_outcomes(episodes)).rate


def _mean(episodes: Sequence[EpisodeRecord], name: str) -> float:
    """Of what an episode records, weighted with its rounds if it is a mean over rounds."""
    values = np.array([getattr(one, name) or 0.0 for one in episodes], np.float64)
    weights = np.array([one.rounds for one in episodes]) if name == "drawn" else None
    return float(np.average(values, weights=weights))


def _rows(group: Sequence[str], episodes: dict[str, list[EpisodeRecord]], latency: dict[str, float]) -> list[ArmRow]:
    """The first arm is the adaptive one."""
    adaptive, *others = group
    outcomes = {arm: _outcomes(episodes[arm]) for arm in group}
    found = [compare(outcomes[arm], outcomes[adaptive], "require").overall for arm in others]
    corrected = holm([one.p for one in found])
    apart = {
        arm: Difference(one.difference, one.interval, one.p, p)
        for arm, one, p in zip(others, found, corrected, strict=True)
    }
    rows = []
    for arm in group:
        rate, drawn = rate_of(outcomes[arm]), _mean(episodes[arm], "drawn")
        rounds, steps = (_mean(episodes[arm], name) for name in ("rounds", "steps"))
        rows.append(
            ArmRow(
                arm,
                rate.rate,
                rate.episodes,
                rounds,
                steps / rounds,
                drawn,
                _latency_of(arm, drawn, latency),
                apart.get(arm),
            )
        )
    return rows


def _latency_of(arm: str, drawn: float, latency: dict[str, float]) -> tuple[float, ...]:
    spec = Spec.parse(arm)
    if spec.k_range is None:
        return (latency[str(replace(spec, execute=None))],)  # the horizon changes the number of rounds, not their time
    agree, disagree = latency[FIXED_K[1]], latency[adaptive_k(0)]
    rest = (drawn - FEW) / (MANY - FEW)
    return agree, disagree, (1 - rest) * agree + rest * disagree


def _table(title: str, rows: Sequence[ArmRow]) -> list[list[Any]]:
    heading = [
        title, "success, %", "fixed, at equal rounds, %", "rounds", "steps", "samples", "samples per episode", "latency",
        "Δ of the adaptive arm",
    ]  # fmt: skip
    return [
        heading,
        *(
            [
                f"`{row.arm}`", f"{100 * row.rate:.1f}", fixed_at_equal_rounds(rows) if row is rows[0] else "–",
                f"{row.rounds:.1f}", f"{row.steps:.1f}", f"{row.drawn:.1f}", f"{row.rounds * row.drawn:.0f}",
                " / ".join(f"{value:.2f}" for value in row.latency), points(row.to_adaptive),
            ]
            for row in rows
        ),
    ]  # fmt: skip
