"""The baseline: what the policy would have done without KeyStone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keystone_robotics.select.rounds import Round
from keystone_robotics.select.rules.base import RoundRule


@dataclass(frozen=True)
class First(RoundRule):
    """The first valid candidate: the K = 1 baseline, and a control that draws K and ignores them.

    >>> import numpy as np, keystone_robotics as keystone
    >>> keystone.select(np.zeros((4, 1, 1)), "first").index
    0
    """

    name: ClassVar[str] = "first"

    def select_round(self, round: Round) -> int:
        return 0
