"""Checks of what is asked of a profile, without torch: the command line answers before it is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from keystone_robotics.option_values import check_k
from keystone_robotics.select.agreement import AdaptiveRange
from keystone_robotics.select.rules.checks import whole


def several(numbers: int | Iterable[int]) -> tuple[int, ...]:
    """One number or several, as a tuple."""
    return tuple(numbers) if isinstance(numbers, Iterable) else (numbers,)


def check_arguments(
    k: int | str | Iterable[int | str],
    tolerance: float,
    budget_ms: float | None,
    rounds: int,
    concurrent: int,
    batch: int | None,
    steps: int | Iterable[int] = (),
    *,
    named: Callable[[str], str] = str,
) -> tuple[tuple[int, ...], list[AdaptiveRange]]:
    """The numbers of candidates, ascending, beginning with 1, and the ranges, whose ends are among the numbers.

    Args:
        named: how the user wrote an argument's name, for errors.

    Raises:
        ValueError, TypeError: about the first argument that makes no sense.
    """
    ks, spans = list[int](), list[AdaptiveRange]()
    for value in (k,) if isinstance(k, (int, str)) else k:
        given = check_k(named("k"), int(value) if isinstance(value, str) and value.isdigit() else value)
        if given == "auto":
            raise ValueError(f"{named('k')}='auto': expected numbers of candidates, or a range such as 4..16")
        span = AdaptiveRange.parse(given)
        spans += [] if span is None else [span]
        ks += [given] if span is None else [span.least, int(span.most or 0)]
    for value in several(steps):
        whole(named("steps"), value)
    if not any(value > 1 for value in ks):
        raise ValueError(
            f"{named('k')}={list(ks)}: expected numbers of candidates to compare with K = 1, [4, 8, 16] say"
        )
    if not 0 <= tolerance < float("inf"):
        raise ValueError(f"{named('tolerance')}={tolerance!r}: expected a fraction, 0 or more (0.05 is five per cent)")
    if budget_ms is not None and not 0 < budget_ms < float("inf"):
        raise ValueError(f"{named('budget_ms')}={budget_ms!r}: expected milliseconds, more than 0")
    whole(named("rounds"), rounds)
    whole(named("concurrent"), concurrent)
    if batch is not None:
        whole(named("batch"), batch)
    return tuple(sorted({1, *ks})), spans
