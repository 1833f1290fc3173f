"""The steps that two successive candidate sets both plan, in one frame."""

from __future__ import annotations

import numpy as np

from keystone_robotics.monitor.observed import Floats, Observed


def overlap(now: Observed, before: Observed | None) -> tuple[Floats, Floats] | None:
    """(n, N) and (m, N): what the candidates of this round and of the previous one plan for the same steps of the episode,
    divided by √N, so that distances do not grow with the number of steps. None if there is nothing to compare.

    Step ``start + executed + j`` of the previous chunks is for the same moment as step ``start + j`` of these. A dimension that
    is relative to where its chunk began cannot be compared as it is; its increments from step to step can. Where it is unknown
    what is relative, increments are compared in all dimensions. Relative rotations do not add up like numbers and are left out.
    """
    if before is None or before.executed is None or before.layout.plain != now.layout.plain:
        return None
    latest, earlier = now.candidates, before.candidates
    first = before.start + before.executed
    length = min(earlier.shape[1] - first, latest.shape[1] - now.start)
    if length < 1 or latest.shape[2] != earlier.shape[2] or not len(latest) or not len(earlier):
        return None
    as_is, increments = _columns(now)
    parts = [
        np.concatenate(
            [
                steps[:, :, as_is].reshape(len(steps), -1),
                np.diff(steps[:, :, increments], axis=1).reshape(len(steps), -1),
            ],
            axis=1,
        )
        for steps in (latest[:, now.start : now.start + length], earlier[:, first : first + length])
    ]
    size = parts[0].shape[1]
    return (parts[0] / np.sqrt(size), parts[1] / np.sqrt(size)) if size else None


def _columns(one: Observed) -> tuple[list[int], list[int]]:
    """The columns of `Observed.candidates` to compare as they are, and those to compare as increments."""
    layout = one.layout
    relative = set(range(one.chunks.shape[2])) if one.relative is None else set(one.relative)
    as_is = [column for column, dim in enumerate(layout.plain) if dim not in relative]
    increments = [column for column, dim in enumerate(layout.plain) if dim in relative]
    column = len(layout.plain)
    for _, block in layout.rotations:  # nine entries of a matrix each
        as_is += [] if relative.intersection(block) else range(column, column + 9)
        column += 9
    return [*as_is, *range(column, column + len(layout.grippers))], increments  # open or closed is never relative
