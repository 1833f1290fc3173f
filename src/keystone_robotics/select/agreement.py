"""How far candidates agree: at all, for adaptive K, and step by step, for an adaptive horizon."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select.metrics import pairwise
from keystone_robotics.select.rounds import as_float64
from keystone_robotics.select.selection import Selection
from keystone_robotics.select.space import ActionSpace

#: Dispersion up to which candidates agree, where the user names no limit: of the first few in ``k=4..16``, and of one step in
#: ``execute=auto``. At 1/2 they lie as far apart as the chunk moves. Policies differ (docs/adaptive.md).
DEFAULT_LIMIT = 0.5

_FORM = re.compile(r"(?:(auto)|(\d{1,9})\.\.(\d{1,9}))(?::(.+))?")


@dataclass(frozen=True)
class AdaptiveRange:
    """A number that follows the agreement of the candidates: ``4..16``, ``auto``, ``4..16:0.1``, ``auto:0.1``.

    Attributes:
        least: at least this many.
        most: at most this many; None for the policy's own number (``auto``).
        limit: dispersion up to which candidates agree, 0 to 1.

    >>> AdaptiveRange.parse("4..16:0.1")
    AdaptiveRange(least=4, most=16, limit=0.1)
    >>> str(AdaptiveRange.parse("auto:0.50")), AdaptiveRange.parse("16")
    ('auto', None)
    """

    least: int = 1
    most: int | None = None
    limit: float = DEFAULT_LIMIT

    @classmethod
    def parse(cls, text: Any) -> AdaptiveRange | None:
        """None if it is no text of this form.

        Raises:
            ValueError: if its numbers make no sense.
        """
        found = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None:
            return None
        auto, least, most, limit = found.groups()
        try:
            own = cls(limit=DEFAULT_LIMIT if limit is None else float(limit))
        except ValueError:
            own = cls(limit=math.nan)
        if not 0 <= own.limit <= 1:
            raise ValueError(f"expected a limit of the dispersion from 0 to 1 after the colon, not {limit}")
        if auto:
            return own
        if not 1 <= int(least) < int(most):
            raise ValueError(f"expected LEAST..MOST with 1 ≤ LEAST < MOST, not {least}..{most}")
        return replace(own, least=int(least), most=int(most))

    def __str__(self) -> str:
        numbers = "auto" if self.most is None else f"{self.least}..{self.most}"
        return numbers if self.limit == DEFAULT_LIMIT else f"{numbers}:{str(self.limit).removesuffix('.0')}"


def agree(selection: Selection, limit: float) -> NDArray[np.bool_]:
    """(B,) whether the candidates of each row agree: their dispersion is at most the limit, and there are two that are finite.

    >>> from keystone_robotics.select import select
    >>> chunks = np.array([[0.0, 1, 2], [0, 1.1, 2], [0, 0.9, 2]])[None, ..., None]
    >>> agree(select(chunks, "medoid"), 0.2), agree(select(chunks[:, :1], "medoid"), 0.2)
    (array([ True]), array([False]))
    """
    return np.asarray((selection.dispersion <= limit) & (selection.valid.sum(-1) >= 2))


def step_dispersion(
    candidates: Any, selection: Selection, space: ActionSpace | None, metric: str, steps: range
) -> NDArray[np.float64]:
    """(B, S) the dispersion of each of S steps: d / (d + m), d the median distance of the candidates in this step, m the
    typical motion of a step. If all steps differ alike, each has `Selection.dispersion`.

    Args:
        candidates: (B, K, T, D).
        selection: of these candidates, batched.
        space: what counted in its distances.
        metric: of its distances.
        steps: of the chunk.

    >>> from keystone_robotics.select import select
    >>> chunks = np.array([[0.0, 1, 2, 3], [0, 1, 2.5, 5], [0, 1, 1.5, 1]])[None, ..., None]
    >>> step_dispersion(chunks, select(chunks, "medoid"), None, "l2", range(4)).round(2)
    array([[0.  , 0.  , 0.21, 0.52]])
    """
    chunks = as_float64(candidates)
    counted = (space or ActionSpace()).layout(*chunks.shape[2:])
    layout = replace(counted, steps=tuple(steps))
    found = np.zeros((len(chunks), len(steps)))
    for row, one in enumerate(chunks):
        valid = one[selection.valid[row]]
        if len(valid) > 1:
            features = layout.embed(valid).reshape(len(valid), len(steps), -1)
            distances = pairwise(features.transpose(1, 0, 2), metric)[0]  # (S, n, n)
            pairs = distances[(slice(None), *np.triu_indices(len(valid), 1))]
            middle = (pairs.shape[1] - 1) // 2
            median = np.partition(pairs, middle, axis=1)[:, middle]
            total = median + _motion_of_a_step(selection, row, metric, len(counted.steps))
            found[row] = np.divide(median, total, out=np.zeros_like(median), where=total > 0)
    return found


def _motion_of_a_step(selection: Selection, row: int, metric: str, steps: int) -> float:
    """The typical motion that `Selection.dispersion` is relative to, as a distance in one of its steps."""
    distance, dispersion = float(selection.median_distance[row]), float(selection.dispersion[row])
    if metric == "cosine":  # relative already
        return 1.0
    if dispersion == 0:
        return math.inf
    return distance * (1 - dispersion) / dispersion / (steps if metric == "l1" else math.sqrt(steps))


def agreed_steps(dispersions: NDArray[np.float64], selection: Selection, span: AdaptiveRange) -> NDArray[np.int64]:
    """(B,) how many steps to execute: up to the first on which the candidates of the row do not agree, but at least
    ``span.least``; also where fewer than two candidates are finite, which say nothing.

    Args:
        dispersions: (B, S) of `step_dispersion`.
        selection: of the candidates.
        span: limit, and the fewest steps.
    """
    apart = dispersions > span.limit
    first = np.where(apart.any(1), apart.argmax(1), apart.shape[1])
    first[selection.valid.sum(-1) < 2] = 0
    return np.clip(first, min(span.least, apart.shape[1]), None).astype(np.int64)
