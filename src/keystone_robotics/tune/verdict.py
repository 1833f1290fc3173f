"""What the confirmation says: which specification to use, in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keystone_robotics.compare.comparison import ALPHA, Comparison, compare, compare_all
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.spec import Spec
from keystone_robotics.tune.space import POLICY_AS_IT_IS

#: A free change at this share of the latency is worth a word even where it does not raise success.
FASTER = 0.8
#: A gain below this is none.
SMALL = 0.05


@dataclass(frozen=True)
class Chosen:
    """The arms that were chosen in the race, and how long a round of each takes.

    Attributes:
        control: the best arm with one sample; the policy as it is, if no change was better.
        candidate: the best arm with K candidates; None if there was none.
        ratio: latency of each of these relative to the policy as it is, by name.
        own_allowed: whether the policy as it is keeps the latency limit.
    """

    control: Spec
    candidate: Spec | None
    ratio: dict[str, float]
    own_allowed: bool = True

    @property
    def arms(self) -> tuple[Spec, ...]:
        """What is confirmed: the policy as it is, then those that differ from it."""
        return tuple(dict.fromkeys(one for one in (POLICY_AS_IT_IS, self.control, self.candidate) if one is not None))


@dataclass(frozen=True)
class Verdict:
    """The result of the confirmation.

    Attributes:
        recommended: what to use.
        headline: why, one sentence.
        notes: further sentences.
        comparisons: paired, on states that were not used for the choice: with the policy as it is, then K candidates with the
            best free change.
    """

    recommended: Spec
    headline: str
    notes: tuple[str, ...]
    comparisons: tuple[Comparison, ...]


def decide(chosen: Chosen, outcomes: Sequence[Outcomes]) -> Verdict:
    """Compare the chosen arms with the policy as it is, and with each other.

    An arm is better if its paired interval lies above zero and the exact test, adjusted for the arms that are compared with
    the policy as it is, agrees. K candidates are recommended over a free change that helps only if they are better than it.

    Args:
        chosen: arms of the race.
        outcomes: of ``chosen.arms``, in this order.
    """
    own, *others = outcomes
    to_own = dict(zip(chosen.arms[1:], compare_all([own, *others], "require"), strict=True))
    control, candidate = chosen.control, chosen.candidate
    free = to_own.get(control)
    several = None if candidate is None else to_own[candidate]
    added = None
    if free is not None and several is not None:
        added = compare(others[0], others[1], "require")
    comparisons = (*to_own.values(), *([added] if added else []))

    free_helps, several_help = _better(free), _better(several)
    adds = several_help if free is None else _better(added)
    if several is not None and several_help and (adds or not free_helps):
        assert candidate is not None
        headline = f"use {candidate}: {_points(several)} to the policy as it is"
        if added is not None:
            clear = "" if adds else ", not clear"
            headline += f"; {_points(added)} to the best free change, {control}{clear}"
        unknown = ("no free change was in the race: what K candidates add to one is not known",) if free is None else ()
        return Verdict(candidate, headline, unknown, comparisons)
    if free is not None and free_helps:
        is_open = added is not None and added.overall.interval[1] >= SMALL
        headline = "a free change helps" if is_open else "a free change is all there is"
        headline += f": use {control}, {_points(free)} to the policy as it is"
        if added is not None:
            open_question = (
                "; whether K candidates add to it is open" if is_open else "; K candidates add nothing to it"
            )
            headline += f"{open_question} ({candidate}: {_points(added)})"
        return Verdict(control, headline, (), comparisons)
    return _no_gain(chosen, to_own, added, comparisons)


def _no_gain(
    chosen: Chosen, to_own: dict[Spec, Comparison], added: Comparison | None, comparisons: tuple[Comparison, ...]
) -> Verdict:
    """No arm is better than the policy as it is."""
    tried = "; ".join(f"{arm} {_points(one)}" for arm, one in to_own.items())
    if not chosen.own_allowed:
        within = chosen.candidate if chosen.candidate and (_better(added) or len(to_own) == 1) else chosen.control
        headline = (
            f"the policy as it is exceeds the latency limit; within it use {within}. To the policy as it is: {tried}"
        )
        return Verdict(within, headline, (), comparisons)
    if all(one.overall.interval[1] < SMALL for one in to_own.values()):
        headline = f"nothing helps here: keep the policy as it is. {tried}"
    else:
        shows = max(one.overall.detectable for one in to_own.values())
        headline = (
            f"no gain is shown: keep the policy as it is, or give a larger budget (this one shows {100 * shows:.0f} points or "
            f"more). {tried}"
        )
    notes = tuple(
        f"{arm} takes {chosen.ratio[str(arm)]:.2f} of the latency at {_points(one)}"
        for arm, one in to_own.items()
        if chosen.ratio[str(arm)] <= FASTER and not one.regression
    )
    return Verdict(POLICY_AS_IT_IS, headline, notes, comparisons)


def _better(comparison: Comparison | None) -> bool:
    return comparison is not None and comparison.improvement and comparison.overall.p_holm < ALPHA


def _points(comparison: Comparison) -> str:
    low, high = (100 * bound for bound in comparison.overall.interval)
    return f"{100 * comparison.overall.difference:+.1f} [{low:+.1f}, {high:+.1f}] points"
