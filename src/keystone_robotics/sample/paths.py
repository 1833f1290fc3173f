"""What is known about the fast path: in which contexts it is exact, and in which it is not."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from keystone_robotics.sample.context import SamplingContext

log = logging.getLogger("keystone")


@dataclass
class Paths:
    """Candidates are drawn on the fast path, on a context that they share, or on the plain one: the policy's own code, K wide.

    Attributes:
        fast: the fast path is wanted, where the override offers one and the self-check finds it exact.
        proved: the contexts in which it is exact.
        refused: those in which it is not, or fails.
        failed_once: those in which it failed once after it had been proved.
        obstacle: what is on the network that the fast path or compiled code would bypass, see `kit.bypass`.
    """

    fast: bool = False
    proved: set[SamplingContext] = field(default_factory=set)
    refused: set[SamplingContext] = field(default_factory=set)
    failed_once: set[SamplingContext] = field(default_factory=set)
    obstacle: str = ""

    def refuse(self, context: SamplingContext, problem: str) -> None:
        """The fast path is not used in this context any more."""
        self.refused.add(context)
        log.warning(
            "KeyStone: the fast path is not used in rounds like this one, candidates are drawn on the plain path: %s",
            problem,
        )

    def fail(self, context: SamplingContext, problem: str) -> None:
        """It failed after it had been proved: forgiven once, because the cause may have been something else."""
        if context in self.failed_once:
            self.refuse(context, problem)
            return
        self.failed_once.add(context)
        log.warning("KeyStone: one round was drawn on the plain path, because the fast path %s", problem)
