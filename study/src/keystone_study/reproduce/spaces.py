"""``keystone reproduce spaces``: does it matter that angles and grippers are compared as what they are?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from keystone_robotics.compare.comparison import compare, rate_of
from keystone_robotics.compare.multiple import holm
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.environments.aloha import JOINTS
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.select import ActionSpace
from keystone_robotics.spec import Spec
from keystone_robotics.tables import as_markdown
from keystone_study.reproduce.analysis import Difference
from keystone_study.reproduce.claims import RECOMMENDED
from keystone_study.reproduce.grids import PAPER
from keystone_study.reproduce.page import Page, find_workloads
from keystone_study.reproduce.tables import points
from keystone_study.reproduce.workloads import WORKLOADS, Workload

#: What the numbers of an action are. OGBench: steps of position (3), yaw, gripper; ALOHA: six joints and a gripper, twice.
SPACES = {
    "ogbench": ActionSpace(rotation={"angle": 3}, gripper={4: 0.0}),
    "aloha": ActionSpace(
        rotation={"angle": [joint for joint in range(JOINTS) if joint % 7 != 6]}, gripper={6: 0.5, 13: 0.5}
    ),
}
SPACE_WORKLOADS = ("cube-single-mixed", "cube-single-noisy", "aloha-mixed")
ARMS = (PAPER, "core-mean:k=16", RECOMMENDED)

ABOUT = (
    "Each arm with plain distances and means over all numbers of an action, and again with an `ActionSpace`: angles are "
    "compared and averaged on the circle, grippers are open or closed and decided by a vote. Same initial states and noise. "
    "Δ in points with paired 95 % intervals; **bold**: clear after Holm's correction."
)
PAGE = Page("spaces", "Angles and grippers in distances", ABOUT, SPACE_WORKLOADS)


@dataclass(frozen=True)
class SpaceRow:
    """One arm on one workload.

    Attributes:
        arm: without a space.
        episodes: number of episodes.
        plain: share of successes without a space, mean over tasks.
        typed: the same with the space of the workload's actions.
        difference: the second minus the first.
    """

    arm: str
    episodes: int
    plain: float
    typed: float
    difference: Difference

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> SpaceRow:
        """What `dataclasses.asdict` gave, after JSON."""
        return cls(**{**stored, "difference": Difference(**stored["difference"])})


def reproduce_spaces(
    out: Path, executor: Executor, console: Console, workloads: Sequence[str] = SPACE_WORKLOADS, quick: bool = False
) -> Path:
    """Write ``spaces.json`` and ``spaces.md``, or ``spaces-WORKLOADS…`` for some. Interrupted, the same call resumes."""
    results = {
        one.name: run_workload(one, out / "runs" / one.name / "spaces", executor, console)
        for one in find_workloads(workloads, quick)
    }
    return PAGE.write(out, workloads, quick, {"workloads": results}, [as_markdown(space_table(results))])


def run_workload(workload: Workload, folder: Path, executor: Executor, console: Console) -> list[SpaceRow]:
    """Roll out every arm with and without the space; episodes are stored in ``folder``."""
    plain = [Spec.parse(arm) for arm in ARMS]
    typed = [replace(arm, space=SPACES[workload.env]) for arm in plain]
    episodes = evaluate(replace(workload.reported(), arms=(*plain, *typed)), folder, executor, console).episodes
    outcomes = {
        str(arm): outcomes_of(str(arm), [one for one in episodes if one.arm == str(arm)]) for arm in (*plain, *typed)
    }
    pairs = [(outcomes[str(one)], outcomes[str(other)]) for one, other in zip(plain, typed, strict=True)]
    found = [compare(*pair, "require").overall for pair in pairs]
    rows = []
    for (before, after), one, p_holm in zip(pairs, found, holm([one.p for one in found]), strict=True):
        rates = rate_of(before), rate_of(after)
        difference = Difference(one.difference, one.interval, one.p, p_holm)
        rows.append(SpaceRow(before.name, rates[0].episodes, rates[0].rate, rates[1].rate, difference))
    return rows


def space_table(results: dict[str, list[SpaceRow]]) -> list[list[str]]:
    """With a heading, for Markdown."""
    heading = ["workload", "arm", "n", "plain, %", "angles and grippers, %", "Δ"]
    return [heading] + [
        [WORKLOADS[name].title, f"`{row.arm}`", str(row.episodes), f"{100 * row.plain:.1f}", f"{100 * row.typed:.1f}",
         points(row.difference)]
        for name, rows in results.items()
        for row in rows
    ]  # fmt: skip
