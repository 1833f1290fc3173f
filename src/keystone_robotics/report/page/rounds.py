"""The rounds of an episode, small enough that hundreds of episodes fit into a page."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keystone_robotics.records import RoundRecord

#: Values of a dimension are rounded to this many steps of its range: half a pixel of the picture, and coarser for pages that
#: would not hold all episodes otherwise.
LEVELS = (1023, 255, 127)
VALUES = 200_000  #: numbers of candidates kept of one episode; longer ones keep every n-th round


def pack_rounds(
    rounds: Sequence[RoundRecord], alarm: Sequence[tuple[float, float]] = (), levels: int = LEVELS[0]
) -> dict[str, Any] | None:
    """Rounds for JSON: statistics of all of them, candidates of as many as `VALUES` allows.

    Candidates are (R, K, T, D) levels of each dimension's range in the episode, as differences along T: 0, -1, 1, -2 … are
    stored as 0, 1, 2, 3 …. Of these uint16 the low bytes, then the high bytes, are deflated and in base64. What is not
    finite is level 0; its candidate has the label -1. K is that of the round with the most (adaptive K); what the others
    lack is level 0 and has no label, so that it is not shown.

    Args:
        rounds: all of an episode.
        alarm: averaged score and limit of an alarm in every round, if there is one.
        levels: to which values are rounded.

    Returns:
        None if there are no rounds with candidates.

    >>> import numpy as np
    >>> straight = np.linspace(0, 1, 5, dtype=np.float32).reshape(1, 5, 1)
    >>> packed = pack_rounds([RoundRecord(0, 0, straight, np.zeros(1, int), 0, False, 1.0, 0.0, straight[0])])
    >>> packed["shape"], packed["low"], packed["high"]
    ([1, 1, 5, 1], [0.0], [1.0])
    """
    if not rounds or not rounds[0].candidates.size:
        return None
    shape = rounds[0].candidates.shape[1:]
    most = max(len(one.candidates) for one in rounds)
    every = math.ceil(len(rounds) * most * math.prod(shape) / VALUES)
    kept = [place for place in range(0, len(rounds), every) if rounds[place].candidates.shape[1:] == shape]
    values = np.full((len(kept), most, *shape), np.nan)  # (R, K, T, D)
    for row, place in enumerate(kept):
        values[row, : len(rounds[place].candidates)] = rounds[place].candidates
    finite = np.isfinite(values)
    low = np.where(finite, values, np.inf).min((0, 1, 2))
    high = np.where(finite, values, -np.inf).max((0, 1, 2))
    low, high = (np.where(np.isfinite(bound), bound, 0.0) for bound in (low, high))
    width = np.where(high > low, high - low, 1.0)
    steps = np.rint((np.where(finite, values, low) - low) / width * levels).astype(np.int32)
    steps[:, :, 1:] -= steps[:, :, :-1].copy()
    folded = np.where(steps < 0, -2 * steps - 1, 2 * steps)
    planes = folded.astype("<u2").view(np.uint8).reshape(-1, 2).T
    return {
        "shape": list(values.shape),
        "levels": levels,
        "low": [float(f"{bound:.6g}") for bound in low],
        "high": [float(f"{bound:.6g}") for bound in high],
        "data": base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode(),
        "kept": kept,
        "index": [rounds[place].index for place in kept],
        "labels": [rounds[place].labels.tolist() for place in kept],
        "synthesised": rounds[0].synthesised,
        "step": [one.step for one in rounds],
        "consensus": [_rounded(one.consensus) for one in rounds],
        "dispersion": [_rounded(one.dispersion) for one in rounds],
        **(
            {"alarm": [_rounded(score) for score, _ in alarm], "limit": [_rounded(limit) for _, limit in alarm]}
            if alarm
            else {}
        ),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
