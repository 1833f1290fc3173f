"""What a score is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keystone_robotics.monitor.observed import Observed


@dataclass(frozen=True)
class Score:
    """One number a round, higher is worse; nan where it says nothing.

    Attributes:
        name: in `SCORES`.
        about: one line.
        function: of this round and, if there was one in the episode, the previous.
        uses_previous: it compares with the previous round: nan in the first round of an episode.
        min_candidates: finite candidates that it needs; nan with fewer.
    """

    name: str
    about: str
    function: Callable[[Observed, Observed | None], float]
    uses_previous: bool = False
    min_candidates: int = 2

    def __call__(self, now: Observed, before: Observed | None = None) -> float:
        """The score of a round."""
        if now.valid < self.min_candidates or (self.uses_previous and before is None):
            return float("nan")
        return float(self.function(now, before))
