"""In which contexts the fast path was found exact, and in which it was rejected."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from keystone_robotics.sample.context import SamplingContext

log = logging.getLogger("keystone")


@dataclass
class Paths:
    """Candidates are drawn on the fast path (shared context) or on the plain path (the policy's own code on K rows).

    Attributes:
        fast: use the fast path where the override offers one and the self-check finds it exact.
        proved: the contexts in which it is exact.
        refused: those in which it is not exact, or raised.
        failed_once: those in which it raised once after it was proved.
        obstacle: the hook or replaced method that the fast path or compiled code would bypass, see `kit.bypass`.
    """

    fast: bool = False
    proved: set[SamplingContext] = field(default_factory=set)
    refused: set[SamplingContext] = field(default_factory=set)
    failed_once: set[SamplingContext] = field(default_factory=set)
    obstacle: str = ""

    def refuse(self, context: SamplingContext, problem: str) -> None:
        """Stop using the fast path in this context."""
        self.refused.add(context)
        log.warning(
            "KeyStone: the fast path is not used in rounds like this one, candidates are drawn on the plain path: %s",
            problem,
        )

    def fail(self, context: SamplingContext, problem: str) -> None:
        """The fast path raised after it was proved. Refused the second time: the first may have had another cause."""
        if context in self.failed_once:
            self.refuse(context, problem)
            return
        self.failed_once.add(context)
        log.warning("KeyStone: one round was drawn on the plain path, because the fast path %s", problem)
