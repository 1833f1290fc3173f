"""Scores of disagreement: one number a round, higher is worse."""

from __future__ import annotations

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.monitor.scores import (
    ace,
    bimodality,
    core_dispersion,
    dispersion,
    one_minus_consensus,
    overlap_distance,
    overlap_energy,
    stac,
    stac_single,
    variance,
)
from keystone_robotics.monitor.scores.base import Score

#: All of them by name.
SCORES: dict[str, Score] = {
    module.SCORE.name: module.SCORE
    for module in (
        dispersion,
        core_dispersion,
        one_minus_consensus,
        bimodality,
        variance,
        ace,
        stac,
        stac_single,
        overlap_distance,
        overlap_energy,
    )
}

#: At K = 16 it told failures from successes on six of the seven policies of `keystone reproduce alarms`.
DEFAULT_SCORE = overlap_distance.SCORE.name

__all__ = ["DEFAULT_SCORE", "SCORES", "Score", "find_score"]


def find_score(name: str) -> Score:
    """A score by its name.

    Raises:
        KeystoneError: if there is none, with the nearest.
    """
    if name not in SCORES:
        raise KeystoneError(f"there is no score {name!r}: {nearest_name(name, SCORES)}")
    return SCORES[name]
