"""Checks of rule parameters, worded alike."""

from __future__ import annotations

import numbers
from typing import Any


def whole(name: str, value: Any, least: int = 1) -> None:
    """A whole number, at least ``least``, that the compiled kernel has a type for."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r}: expected a whole number, {least} or more")
    if int(value) >= 2**63:
        raise ValueError(f"{name}={value!r}: expected a whole number, {least} or more, below 2**63")


def number(name: str, value: Any, above: float | None = None, most: float | None = None) -> None:
    """A number that a float can hold, above a bound and not over another."""
    wanted = "a number" + (f" above {above:g}" if above is not None else "") + (f", at most {most:g}" if most else "")
    wrong = isinstance(value, bool) or not isinstance(value, numbers.Real) or value != value or not _fits(value)
    if wrong or (above is not None and value <= above) or (most is not None and value > most):
        raise ValueError(f"{name}={value!r}: expected {wanted}")


def _fits(value: numbers.Real) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True
