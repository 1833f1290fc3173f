"""A comparison as text."""

from __future__ import annotations

from keystone_robotics.compare.comparison import Comparison, Contrast, Rate
from keystone_robotics.tables import as_text, from_columns, percent_bounds, printable


def lines(comparison: Comparison) -> list[str]:
    """For the terminal: the table, then pairing, tests, timing and errors; without the verdict."""
    one = comparison.overall
    text = [
        f"A  {comparison.a}  ({comparison.a_source})",
        f"B  {comparison.b}  ({comparison.b_source})",
        comparison.pairing.reason,
        *(f"note: {note}" for note in comparison.notes),
        "",
        *as_text(_rows(comparison)).splitlines(),
        "",
        *_repeats(one),
        f"interval of Δ: {one.interval_by}; test: {one.test}",
        _sequential(comparison),
        *_time(comparison),
        *_errors(comparison),
    ]
    return [printable(line) for line in text]


def _rows(comparison: Comparison) -> list[list[str]]:
    contrasts = [*(comparison.tasks if len(comparison.tasks) > 1 else ()), comparison.overall]
    by_task = [_p(one.p_holm) for one in contrasts[:-1]]
    return from_columns(
        {
            "task": [one.task for one in contrasts],
            "n": [_number(one) for one in contrasts],
            "A, %": [_percent(one.a) for one in contrasts],
            "B, %": [_percent(one.b) for one in contrasts],
            "Δ, points": [f"{100 * one.difference:+.1f} {percent_bounds(one.interval, '+.1f')}" for one in contrasts],
            "only B/A": ["" if one.discordant is None else "{}/{}".format(*one.discordant) for one in contrasts],
            "p": [_p(one.p) for one in contrasts],
            "p, Holm": [*by_task, _p(comparison.overall.p_holm) if comparison.arms > 1 else ""],
            "would show": [f"±{100 * one.detectable:.0f}" for one in contrasts],
        }
    )


def _number(contrast: Contrast) -> str:
    """Number of episodes, with the number of initial states if that is smaller; of both arms if they differ."""
    both = [_episodes(contrast.a), _episodes(contrast.b)]
    return both[0] if both[0] == both[1] else " / ".join(both)


def _episodes(rate: Rate) -> str:
    return str(rate.episodes) if rate.episodes == rate.states else f"{rate.episodes} ({rate.states})"


def _percent(rate: Rate) -> str:
    return f"{100 * rate.rate:.1f} {percent_bounds(rate.interval, '.1f')}"


def _p(value: float) -> str:
    return "<0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def _repeats(one: Contrast) -> list[str]:
    if one.a.repeats is None or one.b.repeats is None:
        return []
    text = ", ".join(
        f"{name} {100 * mean:.1f} ± {100 * spread:.1f}"
        for name, (mean, spread) in (("A", one.a.repeats), ("B", one.b.repeats))
    )
    return [f"mean ± std across repeats: {text}"]


def _sequential(comparison: Comparison) -> str:
    bets = comparison.sequential
    stop = "" if bets.decided_at is None else f", {bets.decision} since state {bets.decided_at}"
    return (
        f"sequential: e = {bets.b_better:.3g} for B, {bets.a_better:.3g} for A after {bets.states} initial states, "
        f"{bets.threshold:.0f} needed: {bets.advice}{stop}"
    )


def _time(comparison: Comparison) -> list[str]:
    if comparison.time is None:
        return []
    what, before, after = comparison.time
    unit, scale = ("s", 1e3) if what == "one episode" else ("ms", 1.0)
    ratio = f" (×{after / before:.2f})" if before > 0 else ""
    return [f"{what}: {before / scale:.1f} {unit} → {after / scale:.1f} {unit}{ratio}"]


def _errors(comparison: Comparison) -> list[str]:
    rates = {"A": comparison.overall.a, "B": comparison.overall.b}
    if not any(rate.errors for rate in rates.values()):
        return []
    counts = ", ".join(f"{name} {rate.errors}" for name, rate in rates.items())
    return [
        f"errors, counted as failures: {counts}",
        *(
            f"all {rates[name].episodes} episodes of {name} ended with an error: nothing was measured"
            for name in comparison.only_errors
        ),
    ]
