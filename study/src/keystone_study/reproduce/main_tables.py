"""The main study as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from keystone_robotics.tables import as_markdown, counted
from keystone_study.reproduce.claims import RECOMMENDED, pooled
from keystone_study.reproduce.grids import AS_IT_IS, FIXED
from keystone_study.reproduce.main import CANDIDATES, FREE, NO_SLOWER, Arm, MainResult
from keystone_study.reproduce.tables import points

LEGEND = (
    "Success in %, mean over tasks. × is the time that an executed step costs, relative to the policy as it is (CPU, one "
    "thread, batch size 1; an arm that executes half of a chunk has twice the rounds). *Best free change*: of 50 arms with one "
    "sample (steps × temperature × executed steps), the one that did best on other initial states. *Best with K = 16*: of 50 "
    "arms with the same freedom, chosen on the same states. Δ in points with paired 95 % intervals, initial states as units."
)


def short_table(results: Sequence[MainResult]) -> list[list[str]]:
    """The policy as it is, the best free change, KeyStone as recommended: success (time of an executed step)."""
    heading = ["workload", "policy as it is", "best free change", "as recommended", "Δ to the policy as it is"]
    rows = []
    for result in results:
        first, free, ours = (result.arm(name) for name in (AS_IT_IS, result.choices[FREE].arm, RECOMMENDED))
        cells = [f"{100 * one.rate.rate:.1f} % (× {one.per_step:.2f})" for one in (first, free, ours)]
        rows.append([result.workload.title, *cells, points(result.difference(RECOMMENDED, AS_IT_IS))])
    return [heading, *rows]


def overview(results: Sequence[MainResult]) -> list[list[str]]:
    """One row for each workload."""
    heading = ["workload", "n", "policy as it is", "best free change", "paper's rule, K = 16", f"`{RECOMMENDED}`"]
    heading += ["best with K = 16", "Δ to the policy as it is", "Δ to the best free change", "no slower: Δ to free"]
    rows = []
    for result in results:
        free, several = result.choices[FREE].arm, result.choices[CANDIDATES].arm
        no_slower = result.choices.get(NO_SLOWER)
        rows.append(
            [
                result.workload.title,
                str(result.arm(AS_IT_IS).rate.episodes),
                _success(result.arm(AS_IT_IS)),
                f"{_success(result.arm(free))} `{_options(free)}`",
                _success(result.arm(FIXED[0])),
                _success(result.arm(RECOMMENDED)),
                f"{_success(result.arm(several))} `{_options(several)}`",
                points(result.difference(several, AS_IT_IS)),
                points(result.difference(several, free)),
                "–" if no_slower is None else points(result.difference(no_slower.arm, free)),
            ]
        )
    return [heading, *rows]


def claims_table(results: Sequence[MainResult]) -> list[list[str]]:
    """Every claim, pooled over trained policies."""
    rows = [["claim", "difference, points", "policies above zero", "time of a step"]]
    for one in pooled(results):
        low, high = (100 * bound for bound in one.interval)
        interval = f" [{low:+.1f}, {high:+.1f}]" if one.policies > 1 else ""  # one policy says nothing about others
        rows.append(
            [
                one.text,
                f"{100 * one.value:+.1f}{interval}",
                f"{one.positive} of {one.policies}",
                f"× {one.cost:.2f}",
            ]
        )
    return rows


def details(result: MainResult) -> str:
    """All reported arms of one workload."""
    free, after = result.choices[FREE].arm, result.afterwards
    heading = ["arm", "success", "a round", "an executed step", "Δ to the policy as it is", "Δ to the best free change"]
    marks = {one.arm: f"best {group}" for group, one in reversed(result.choices.items())}
    rows = []
    for one in result.arms:
        mark = marks.get(one.name, "")
        mark = "; ".join(part for part in (mark, "best cooled, chosen afterwards" if one.name == after else "") if part)
        rows.append(
            [
                f"`{one.name}`" + (f" ({mark})" if mark else ""),
                f"{100 * one.rate.rate:.1f}",
                f"× {one.latency:.2f}",
                f"× {one.per_step:.2f}",
                points(result.difference(one.name, AS_IT_IS)),
                points(result.difference(one.name, free)),
            ]
        )
    chosen = "; ".join(
        f"{group}: `{one.arm}` of {one.tried} arms ({100 * one.rate:.1f} % of {one.episodes} episodes; {one.spent} in all)"
        for group, one in result.choices.items()
    )
    rate = result.arm(AS_IT_IS).rate
    about = (
        f"{result.workload.about} {counted(len(result.tasks), 'task')} × {rate.states // len(result.tasks)} "
        f"initial states. Chosen on other states: {chosen}."
    )
    return f"### {result.workload.title}\n\n{about}\n\n{as_markdown([heading, *rows])}\n"


def _success(arm: Arm) -> str:
    return f"{100 * arm.rate.rate:.1f}, × {arm.per_step:.2f}"


def _options(name: str) -> str:
    return name.removeprefix("first:")
