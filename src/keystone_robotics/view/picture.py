"""One round as it is drawn: few enough numbers that a round takes less than 5 kB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

#: Positions (K, T, 2 or 3) of the tool, and where the gripper is closed (K, T), if that is known.
ToolPath = tuple[Floats, "NDArray[np.bool_] | None"]
#: Maps chunks (K, T, D) to a `ToolPath`, or to its positions alone.
PathFn = Callable[[Floats], Any]

BYTES = 2050  #: of the drawn candidates of one round
LANE_BYTES = 3600  #: the same with lanes and the executed chunk, whose x coordinates repeat and are compressed
EXECUTED = 32  #: steps of an executed path
ACTION_BYTES = 1300  #: of the executed actions of one round, which Rerun stores as float64
ROW = 24  #: bytes of a row of a series beside its values: its id and its times
STRIP = 8  #: bytes of a line beside its points: colour and offset
STEPS = 6  #: steps that a line keeps at least; beyond that, candidates are left out
LANE = 1.25  #: distance of two lanes, whose height is 1
WIDTH = 6.0  #: of a lane
MOST_LANES = 16


@dataclass(frozen=True)
class Picture:
    """One round of one episode.

    Attributes:
        number: of the round in its episode.
        frame: environment step at which it began.
        seconds: since the beginning of the episode; None if unknown.
        lines: (N, S, 2 or 3) drawn candidates.
        clusters: (N,) of each line.
        executed: (M, S, 2 or 3) what is executed.
        glyphs: (G, 2 or 3) where the gripper changes along what is executed, and at its beginning; empty if unknown.
        closed: (G,) to what.
        actions: (n, A) executed steps.
        consensus: of the round.
        dispersion: of the round.
        alarm: averaged score and limit of an alarm; None without one.
    """

    number: int
    frame: int
    seconds: float | None
    lines: Floats
    clusters: NDArray[np.int64]
    executed: Floats
    actions: Floats
    consensus: float
    dispersion: float
    glyphs: Floats = field(default_factory=lambda: np.zeros((0, 3), np.float32))
    closed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    alarm: tuple[float, float] | None = None


@dataclass(frozen=True)
class Lanes:
    """A picture of chunks that are no positions: one lane for each dimension, steps from left to right.

    Attributes:
        dims: (L,) dimension of each lane, the first on top.
        low: (L,) value at the lower edge of each lane.
        high: (L,) value at its upper edge.
        total: number of dimensions.
    """

    dims: NDArray[np.int64]
    low: Floats
    high: Floats
    total: int

    @staticmethod
    def around(rounds: Sequence[NDArray[Any]], room: float) -> Lanes:
        """Lanes for candidates like those of these rounds, each (K, T, D), with ``room`` times their range to spare on each
        side. Of more than `MOST_LANES` dimensions those are drawn in which the candidates of a round differ most.

        >>> lanes = Lanes.around([np.array([[[-1.0, 5.0]], [[1.0, 5.0]]])], 0.25)
        >>> lanes.low.tolist(), lanes.high.tolist()
        ([-1.5, 4.5], [1.5, 5.5])
        >>> Lanes.around([np.outer([-1.0, 1.0], np.arange(17) != 3)[:, None]], 0.25).dims.tolist()
        [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
        """
        flat = np.concatenate([one.reshape(-1, one.shape[-1]) for one in rounds]).astype(np.float32)
        finite = np.isfinite(flat)
        low, high = np.where(finite, flat, np.inf).min(0), np.where(finite, flat, -np.inf).max(0)
        low, high = (np.where(np.isfinite(bound), bound, 0).astype(np.float32) for bound in (low, high))
        flat_lane = high - low <= 1e-6 * np.maximum(1, np.abs(high))
        margin = np.where(flat_lane, 0.5, room * (high - low))
        low, high, total = low - margin, high + margin, flat.shape[1]
        dims = np.arange(total)
        if total > MOST_LANES:
            apart = sum(np.where(np.isfinite(one), one, 0).std(0).mean(0) for one in rounds) / (high - low)
            dims = np.sort(np.argsort(-apart, kind="stable")[:MOST_LANES])
        return Lanes(dims, low[dims].astype(np.float32), high[dims].astype(np.float32), total)

    def lines(self, chunks: NDArray[Any]) -> Floats:
        """(K · L, T, 2): for each chunk (K, T, D) a line in each lane; the y axis points down."""
        chunks = chunks[..., self.dims]
        k, steps, dims = chunks.shape
        across = np.linspace(0, WIDTH, steps, dtype=np.float32) if steps > 1 else np.zeros(1, np.float32)
        up = (chunks - self.low) / (self.high - self.low)
        down = LANE * np.arange(dims) + 1 - up
        points = np.stack([np.broadcast_to(across[:, None], down.shape), down], -1)  # (K, T, D, 2)
        return points.transpose(0, 2, 1, 3).reshape(k * dims, steps, 2).astype(np.float32)

    def frame(self) -> Floats:
        """(L, 5, 2) the edges of the lanes."""
        box = np.array([(0, 0), (WIDTH, 0), (WIDTH, 1), (0, 1), (0, 0)], np.float32)
        offset = np.zeros((len(self.low), 1, 2), np.float32)
        offset[:, 0, 1] = LANE * np.arange(len(self.low))
        return box + offset


def thin(
    labels: NDArray[np.int64], index: int, steps: int, coordinates: int, lanes: int = 1
) -> tuple[list[int], NDArray[np.int64]]:
    """Which candidates are drawn, and which of their steps.

    Args:
        labels: (K,) cluster of each candidate; those below 0 are not drawn.
        index: the selected candidate, which always is.
        steps: of a chunk.
        coordinates: of a point.
        lanes: lines of a candidate.

    Returns:
        Candidates (those of a cluster alternate with the others', so that every cluster is seen) and steps.

    >>> thin(np.array([0, 0, 1, 0, -1]), 0, 16, 3)[0]
    [0, 2, 1, 3]
    >>> candidates, steps = thin(np.zeros(64, int), 5, 50, 2, lanes=7)
    >>> len(candidates), steps.tolist()
    (8, [0, 10, 20, 29, 39, 49])
    """
    seen: dict[int, int] = {}
    order = []
    for candidate in sorted(range(len(labels)), key=lambda one: one != index):
        if (label := int(labels[candidate])) >= 0:
            order.append((seen.setdefault(label, 0), label, candidate))
            seen[label] += 1
    drawn = [candidate for _, _, candidate in sorted(order, key=lambda one: (one[2] != index, one))]
    budget, more = (BYTES, 0) if lanes == 1 else (LANE_BYTES, 1)  # the executed chunk is drawn in all lanes too

    def steps_for(candidates: int) -> int:
        return (budget // max(1, (candidates + more) * lanes) - STRIP) // (4 * coordinates)

    while len(drawn) > 1 and steps_for(len(drawn)) < min(steps, STEPS):
        drawn.pop()
    kept = int(np.clip(steps_for(len(drawn)), min(2, steps), steps))
    return drawn, _even(steps, kept)


def thin_actions(steps: int, dims: int) -> NDArray[np.int64]:
    """Which of the executed steps are stored: all, or as many as fit, evenly, with the first and the last.

    >>> len(thin_actions(16, 7)), len(thin_actions(50, 7)), thin_actions(100, 32).tolist()
    (16, 16, [0, 33, 66, 99])
    """
    return _even(steps, max(2, ACTION_BYTES // (8 * dims + ROW)))


def draw(
    candidates: Floats,
    labels: NDArray[np.int64],
    index: int,
    executed: Floats | None,
    path: PathFn | None,
    lanes: Lanes,
) -> dict[str, Any]:
    """The drawn parts of a `Picture`, as its arguments.

    Args:
        candidates: (K, T, D), as the policy's sampler returned them, without padding.
        labels: (K,).
        index: the selected candidate.
        executed: (S, D) the executed chunk in the same units, if it is none of the candidates; else None.
        path: maps chunks to positions; None draws lanes.
        lanes: of the dimensions, if there is no path.
    """
    chosen = candidates[index][None] if executed is None else executed[None]
    if path is None:
        drawn, steps = thin(labels, index, candidates.shape[1], 2, lanes=len(lanes.dims))
        clusters = np.repeat(labels[drawn], len(lanes.dims))
        steps_of_chosen = steps if executed is None else _even(chosen.shape[1], len(steps))
        return {
            "lines": _lines_at(lanes, candidates[drawn], steps),
            "clusters": clusters,
            "executed": _lines_at(lanes, chosen, steps_of_chosen, candidates.shape[1]),
        }
    points, _ = tool_path(path, candidates)
    along, closed = tool_path(path, chosen)
    drawn, steps = thin(labels, index, points.shape[1], points.shape[2])
    executed_steps = _even(along.shape[1], EXECUTED)
    parts = {"lines": points[drawn][:, steps], "clusters": labels[drawn], "executed": along[:, executed_steps]}
    if closed is not None:
        changes = np.flatnonzero(np.r_[True, closed[0, 1:] != closed[0, :-1]])
        parts |= {"glyphs": along[0, changes], "closed": closed[0, changes]}
    return parts


def _even(steps: int, count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, steps - 1, min(steps, count)).round().astype(np.int64))


def _lines_at(lanes: Lanes, chunks: Floats, steps: NDArray[np.int64], length: int | None = None) -> Floats:
    """Lines of some steps of chunks (K, T, D); T steps of a longer chunk of ``length`` end before the edge of the lane."""
    lines = lanes.lines(chunks)[:, steps]
    if length is not None and length > 1:
        lines[..., 0] *= (chunks.shape[1] - 1) / (length - 1)
    return lines


def tool_path(path: PathFn, chunks: Floats) -> ToolPath:
    """The positions of chunks, checked.

    Raises:
        ValueError: if the function returned something else.
    """
    found = path(chunks)
    points, closed = found if isinstance(found, tuple) else (found, None)
    points = np.asarray(points, np.float32)
    if points.ndim != 3 or len(points) != len(chunks) or points.shape[2] not in (2, 3):
        raise ValueError(
            f"the path function made {points.shape} of chunks {chunks.shape}: expected ({len(chunks)}, steps, 2 or 3)"
        )
    return points, None if closed is None else np.asarray(closed, bool)
