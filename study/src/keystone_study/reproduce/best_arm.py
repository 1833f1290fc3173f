"""Choose the best of many arms on states that are not reported: all of them on a few states, the best of these on more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from keystone_robotics.compare.comparison import rate_of
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.spec import Spec

SHORTLIST = 10  #: arms of each group that are tried on all states


@dataclass(frozen=True)
class BestArm:
    """The best arm of a group.

    Attributes:
        arm: its name.
        rate: on all states for choosing, mean over tasks.
        episodes: of this arm.
        tried: number of arms in the group.
        spent: episodes of the whole group.
    """

    arm: str
    rate: float
    episodes: int
    tried: int
    spent: int


def choose(
    settings: EvaluationConfig,
    groups: dict[str, Sequence[Spec]],
    folder: Path,
    executor: Executor,
    console: Console,
) -> dict[str, BestArm]:
    """The best arm of each group, by success rate; of equals the first.

    Args:
        settings: of the states for choosing; its arms are replaced. A shard of states is the first stage.
        groups: arms by the name of their group; an arm may be in several.
        folder: of the run.
        executor: rolls out the shards.
        console: for progress.
    """
    everybody = tuple(dict.fromkeys(arm for arms in groups.values() for arm in arms))
    first = evaluate(replace(settings, arms=everybody, episodes=settings.shard), folder, executor, console)
    ranked = _rates(first.episodes)
    short = {name: _best(arms, ranked)[:SHORTLIST] for name, arms in groups.items()}
    finalists = tuple(dict.fromkeys(arm for arms in short.values() for arm in arms))
    found = evaluate(replace(settings, arms=finalists), folder, executor, console).episodes
    rates = _rates(found)
    counts: dict[str, int] = {}
    for one in found:
        counts[one.arm] = counts.get(one.arm, 0) + 1
    choices = {}
    for name, arms in groups.items():
        best = str(_best(short[name], rates)[0])
        spent = sum(counts[str(arm)] for arm in arms)
        choices[name] = BestArm(best, rates[best], counts[best], len(arms), spent)
    return choices


def _rates(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    by_arm: dict[str, list[EpisodeRecord]] = {}
    for one in episodes:
        by_arm.setdefault(one.arm, []).append(one)
    return {arm: rate_of(outcomes_of(arm, rows)).rate for arm, rows in by_arm.items()}


def _best(arms: Sequence[Spec], rates: dict[str, float]) -> list[Spec]:
    return sorted(arms, key=lambda arm: -rates[str(arm)])  # stable: of equals the first
