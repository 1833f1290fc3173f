"""What the confirmation says: which specification to use, in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keystone_robotics.compare.comparison import Comparison, compare, compare_all
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.spec import Spec
from keystone_robotics.tune.space import POLICY_AS_IT_IS

#: An arm at this share of the policy's time per step is worth a word even where it does not raise success.
FASTER = 0.8
#: A gain or loss below this is none.
SMALL = 0.05


@dataclass(frozen=True)
class ConfirmedArms:
    """The arms that the race chose, and what an executed step of each costs.

    Attributes:
        free: the best arm with one sample; the policy as it is, if there was no other.
        several: the best arm with K candidates; None if there was none.
        step_ratio: time of an executed step of each of these relative to the policy as it is, by name.
        own_allowed: whether the policy as it is keeps the latency limit.
    """

    free: Spec
    several: Spec | None
    step_ratio: dict[str, float]
    own_allowed: bool = True

    @property
    def arms(self) -> tuple[Spec, ...]:
        """What is confirmed: the policy as it is, then those that differ from it."""
        return tuple(dict.fromkeys(one for one in (POLICY_AS_IT_IS, self.free, self.several) if one is not None))


@dataclass(frozen=True)
class Verdict:
    """The result of the confirmation.

    Attributes:
        recommended: what to use.
        headline: why, one sentence.
        notes: further sentences.
        comparisons: paired, on states that were not used for the choice: with the policy as it is, then K candidates with the
            best free change.
        faster: the fastest arm that is no better but, to within 5 points, no worse than the recommended policy as it is.
    """

    recommended: Spec
    headline: str
    notes: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    faster: Spec | None = None


def decide(confirmed: ConfirmedArms, outcomes: Sequence[Outcomes]) -> Verdict:
    """Compare the confirmed arms with the policy as it is, and with each other.

    An arm is recommended over the policy as it is if it is "better" (`Comparison.outcome`), and K candidates over a free change
    that helps only if they are better than it.

    Args:
        confirmed: arms of the race.
        outcomes: of ``confirmed.arms``, in this order.
    """
    own, *others = outcomes
    to_own = dict(zip(confirmed.arms[1:], compare_all([own, *others], "require"), strict=True))
    free = to_own.get(confirmed.free)
    several = None if confirmed.several is None else to_own[confirmed.several]
    added = None
    if free is not None and several is not None:
        added = compare(others[0], others[1], "require")
    comparisons = (*to_own.values(), *([added] if added else []))

    free_helps, several_help = _better(free), _better(several)
    adds = several_help if free is None else _better(added)
    if several is not None and several_help and (adds or not free_helps):
        assert confirmed.several is not None
        headline = f"use {confirmed.several}: {several.points} to the policy as it is"
        if added is not None:
            clear = "" if adds else f", {added.outcome}"
            headline += f"; {added.points} to the best free change, {confirmed.free}{clear}"
        unknown = ("no free change was in the race: what K candidates add to one is not known",) if free is None else ()
        return Verdict(confirmed.several, headline, unknown, comparisons)
    if free is not None and free_helps:
        is_open = added is not None and added.overall.interval[1] >= SMALL
        headline = "a free change helps" if is_open else "a free change is all there is"
        headline += f": use {confirmed.free}, {free.points} to the policy as it is"
        if added is not None:
            open_question = (
                "; whether K candidates add to it is open" if is_open else "; K candidates add nothing to it"
            )
            headline += f"{open_question} ({confirmed.several}: {added.points})"
        return Verdict(confirmed.free, headline, (), comparisons)
    return _no_gain(confirmed, to_own, added, comparisons)


def _no_gain(
    confirmed: ConfirmedArms,
    to_own: dict[Spec, Comparison],
    added: Comparison | None,
    comparisons: tuple[Comparison, ...],
) -> Verdict:
    """No arm is better than the policy as it is."""
    tried = "; ".join(f"{arm} {one.points}" for arm, one in to_own.items())
    if not confirmed.own_allowed:
        within = confirmed.several if confirmed.several and (_better(added) or len(to_own) == 1) else confirmed.free
        headline = (
            f"the policy as it is exceeds the latency limit; within it use {within}. To the policy as it is: {tried}"
        )
        return Verdict(within, headline, (), comparisons)
    above = [str(arm) for arm, one in to_own.items() if one.overall.interval[0] > 0]
    shows = 100 * max(one.overall.detectable for one in to_own.values())
    larger = f"keep the policy as it is, or give a larger budget (this one shows {shows:.0f} points or more)"
    if above:
        doubt = f"the interval of {' and '.join(above)} excludes zero, the corrected test does not"
        headline = f"no gain is shown, {doubt}: {larger}. {tried}"
    elif all(one.overall.interval[1] < SMALL for one in to_own.values()):
        headline = f"nothing helps here: keep the policy as it is. {tried}"
    else:
        headline = f"no gain is shown: {larger}. {tried}"
    not_below = {arm: one for arm, one in to_own.items() if one.overall.interval[1] >= 0}
    quick = {arm: one for arm, one in not_below.items() if confirmed.step_ratio[str(arm)] <= FASTER}
    as_good = [arm for arm, one in quick.items() if one.overall.interval[0] > -SMALL]
    faster = min(as_good, key=lambda arm: confirmed.step_ratio[str(arm)], default=None)
    if faster is not None:
        headline += (
            f". Much faster at no loss of {100 * SMALL:.0f} points: {faster} takes {confirmed.step_ratio[str(faster)]:.2f} of "
            "the time per step; use it if you need the time"
        )
    notes = tuple(
        f"{arm} takes {confirmed.step_ratio[str(arm)]:.2f} of the time per step at {one.points}: a loss of "
        f"{100 * SMALL:.0f} points is not excluded"
        for arm, one in quick.items()
        if arm not in as_good
    )
    return Verdict(POLICY_AS_IT_IS, headline, notes, comparisons, faster)


def _better(comparison: Comparison | None) -> bool:
    return comparison is not None and comparison.outcome == "better"
