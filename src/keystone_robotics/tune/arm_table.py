"""The table of arms: how far each came in the race, and its latency."""

from __future__ import annotations

from collections.abc import Sequence

from keystone_robotics.compare.comparison import Comparison, compare
from keystone_robotics.compare.power import states_for
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.evaluate.latency import Latencies
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.spec import Spec
from keystone_robotics.tune.config import TuneConfig
from keystone_robotics.tune.race import Race
from keystone_robotics.tune.result import ArmResult
from keystone_robotics.tune.space import POLICY_AS_IT_IS, is_free
from keystone_robotics.tune.verdict import ConfirmedArms

#: Difference for which the report says how many episodes would show it.
DIFFERENCE = 0.05


def best_of(race: Race, eligible: Sequence[Spec], group: int) -> Spec | None:
    """The best arm of a group beside the policy as it is: of those that ran longest, the one with the most successes."""
    mine = [
        number for number, arm in enumerate(eligible) if race.arms[number].group == group and arm != POLICY_AS_IT_IS
    ]
    best = max(mine, key=lambda number: (race.arms[number].blocks, race.arms[number].successes, -number), default=None)
    return None if best is None else eligible[best]


def raced_episodes(race: Race, eligible: Sequence[Spec], stored: Sequence[EpisodeRecord]) -> list[EpisodeRecord]:
    """The stored episodes that the race used; calls with a larger budget may have stored more."""
    blocks = {str(arm): race.arms[number].blocks for number, arm in enumerate(eligible)}
    return [one for one in stored if one.episode < blocks.get(one.arm, 0)]


def arm_table(
    config: TuneConfig,
    arms: Sequence[Spec],
    eligible: Sequence[Spec],
    race: Race,
    raced: Sequence[EpisodeRecord],
    latencies: Latencies,
    confirmed: ConfirmedArms,
) -> tuple[ArmResult, ...]:
    """One row for each arm of the space: those that ran longest first, then by their rate."""
    numbers = {arm: number for number, arm in enumerate(eligible)}
    rows = list[ArmResult]()
    for arm in arms:
        name, number = str(arm), numbers.get(arm)
        measured = name not in latencies.refused
        one = None if number is None else race.arms[number]
        episodes = 0 if one is None else one.blocks * race.tasks
        if one is None:
            status = latencies.refused.get(name, f"not tried: exceeds --latency {config.latency} per executed step")
        elif arm in (confirmed.free, confirmed.several) and arm != POLICY_AS_IT_IS:
            status = "best free change" if is_free(arm) else "best with K candidates"
        else:
            status = _status(race, number or 0, eligible)
        rows.append(
            ArmResult(
                arm=name,
                rate=one.successes / episodes if one is not None and episodes else None,
                episodes=episodes,
                errors=sum(row.arm == name and row.error is not None for row in raced),
                latency_ms=latencies.round_ms(arm) if measured else None,
                latency_ratio=latencies.step_ratio(arm) if measured else None,
                status=f"the policy as it is; {status}" if arm == POLICY_AS_IT_IS else status,
                eliminated_by=None if one is None or one.eliminated_by is None else str(eligible[one.eliminated_by]),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.episodes, -(row.rate or 0.0))))


def _status(race: Race, number: int, eligible: Sequence[Spec]) -> str:
    one = race.arms[number]
    states = one.blocks * race.tasks
    if one.eliminated_by is None:
        leader = race.leader(one.group)
        return "best of its group" if leader == number else f"not told apart from {eligible[leader]}"
    if one.status == "eliminated":
        return f"eliminated after {states} states, e = {one.e_value:.0f}"
    return f"dropped after {states} states"


def finalists(race: Race, eligible: Sequence[Spec], raced: Sequence[EpisodeRecord]) -> list[str]:
    """A sentence for each pair at the head of a group that the race could not tell apart."""
    found = []
    for group in sorted({one.group for one in race.arms}):
        leader = race.leader(group)
        left = [number for number in race.running() if race.arms[number].group == group and number != leader]
        for number in left:
            a, b = (
                outcomes_of(str(eligible[one]), [row for row in raced if row.arm == str(eligible[one])])
                for one in (number, leader)
            )
            found.append(f"the race could not tell {b.name} from {a.name}: {more_episodes(compare(a, b))}")
    return found


def more_episodes(comparison: Comparison) -> str:
    """The difference, and what it would take to be sure."""
    one = comparison.overall
    more = max(0, states_for(DIFFERENCE, one.a.states, one.detectable) - one.a.states)
    return (
        f"{comparison.points} on {one.a.states} states; to see a difference of "
        f"{100 * DIFFERENCE:.0f} points would take about {2 * more} more episodes of the two"
    )
