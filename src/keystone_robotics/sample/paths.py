"""On which path the candidates of a round are drawn: the policy's own code on K candidates, or an exact faster one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from keystone_robotics.sample.check import Finding, compare_with_plain
from keystone_robotics.sample.drawn import Draw, Drawn
from keystone_robotics.sample.situation import Situation

log = logging.getLogger("keystone")


@dataclass
class Paths:
    """What is wanted, and what has been found out.

    Attributes:
        fast: draw on the fast path, where the seam offers one and the self-check finds it exact. As asked for: what was found
            out since is in the others.
        proved: the situations in which it is exact.
        refused: those in which it is not, or fails.
        stumbled: those in which it failed once, after it had been proved.
        obstacle: what is on the network that the fast path or compiled code would pass by, see `sample.kit.bypass`.
        last: the one on which the last round drew: "fast" or "plain"; "undecided" before the first.
    """

    fast: bool = False
    proved: set[Situation] = field(default_factory=set)
    refused: set[Situation] = field(default_factory=set)
    stumbled: set[Situation] = field(default_factory=set)
    obstacle: str = ""
    last: str = "undecided"

    def settled(self, fast: Draw | None, now: Situation) -> bool:
        """Whether it is known on which path to draw, given that the plain one has passed the self-check, or the fast one."""
        return fast is None or not self._usable(now) or now in self.proved

    def _usable(self, now: Situation) -> bool:
        """Whether the fast path is wanted and nothing is known against it in this situation."""
        return self.fast and now not in self.refused

    def settle(
        self,
        attempt: Callable[[Draw, str], tuple[Drawn, Finding]],
        conclude: Callable[[Finding], None],
        fast: Draw | None,
        plain: Draw,
        now: Situation,
    ) -> tuple[Draw, Drawn]:
        """Find out on which path to draw from now on: the way it is drawn, and its candidates.

        Args:
            attempt: draws on the path of this name and makes the self-check.
            conclude: takes what it found on the path settled on, and raises if that is a problem.
            fast, plain: how to draw on them; None where there is no fast one.
            now: the situation.
        """
        problem, beside = "", None
        if fast is not None and self._usable(now):
            try:
                drawn, finding = attempt(fast, "fast")
            except torch.cuda.OutOfMemoryError:  # the plain path takes no less, and nothing is wrong with this one
                raise
            except Exception as error:  # whatever it is: the plain path does without it, or fails for the same reason
                problem = _failure(error)
            else:
                if finding.doubtful and not finding.problem:
                    beside = attempt(plain, "plain")
                    finding = compare_with_plain(finding, beside[1])
                problem = finding.problem
            if not problem:
                conclude(finding)
                self.proved.add(now)
                return fast, drawn
        drawn, finding = beside or attempt(plain, "plain")
        conclude(finding)
        if problem:
            self._refuse(problem, now)
        return plain, drawn

    def draw(
        self, sample: Callable[[Draw], Drawn], fast: Draw | None, plain: Draw, now: Situation
    ) -> tuple[Draw, Drawn]:
        """Draw on the path that was settled on; should the fast one fail after all, on the plain one, after the second time
        from then on.
        """
        if fast is None or not self._usable(now):
            self.last = "plain"
            return plain, sample(plain)
        try:
            drawn = sample(fast)
            self.last = "fast"
            return fast, drawn
        except torch.cuda.OutOfMemoryError:  # with one candidate: the plain path takes no less
            raise
        except Exception as error:
            problem = _failure(error)
        # Out of the handler, whose error keeps what the fast path had in memory.
        drawn = sample(plain)  # fails too, if it is the observation that is wrong
        if now in self.stumbled:
            self._refuse(problem, now)
        else:  # it had been proved: something passing, perhaps, that had nothing to do with it
            self.last = "plain"
            self.stumbled.add(now)
            log.warning("KeyStone: a round was drawn on the plain path, because on the fast one %s", problem)
        return plain, drawn

    def _refuse(self, problem: str, now: Situation) -> None:
        self.last = "plain"
        self.refused.add(now)
        log.warning(
            "KeyStone: the fast path is not used in rounds like this one, candidates are drawn on the plain one: %s",
            problem,
        )


def _failure(error: Exception) -> str:
    return f"it failed with {type(error).__name__}: {error}"
