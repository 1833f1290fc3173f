"""Rounds of the policy for several robots: what each needs of its last round, errors, and too little memory."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from keystone_robotics.errors import TooManyCandidates
from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.integrations.round_log import attach_with_log, describe_row
from keystone_robotics.monitor.alarm import Alarm
from keystone_robotics.sample.noise import derive_seed
from keystone_robotics.sample.seeds import row_seeds
from keystone_robotics.serve.messages import Content, Refused, Waiting
from keystone_robotics.serve.policy import Row, Served
from keystone_robotics.serve.scheduler import Batch, Setting, check_spec
from keystone_robotics.spec import Spec

log = logging.getLogger("keystone.serve")

#: Rounds of a robot after which a K that did not fit into memory is tried again.
RETRY = 100


@dataclass
class Robot:
    """What a robot's next round needs of its last ones.

    Attributes:
        observations: the last ones, newest last.
        chunk: (T, D) the last selected chunk, if the rule looks back.
        rounds: so far in this episode.
        episode: counts resets, so that an alarm begins anew.
        fits: the K that fits into memory, once a larger one did not; None if all do.
        retry_at: the round before which no larger K is tried.
    """

    observations: deque[Any]
    chunk: torch.Tensor | None = None
    rounds: int = 0
    episode: int = 0
    fits: int | None = None
    retry_at: int = 0


class Rounds:
    """The attached policy; used by one thread.

    Attributes:
        handle: of the policy.
        alarm: that `KEYSTONE_ALARM` names; None if there is none.

    Args:
        served: the policy.
        spec: how candidates are drawn and one is selected.
    """

    def __init__(self, served: Served, spec: Spec) -> None:
        check_spec(spec)
        self.served = served
        self.handle: Handle = attach_with_log(served.policy, spec)
        self.alarm = next((one for one in self.handle.engine.listeners.find(Alarm) if isinstance(one, Alarm)), None)
        self._seed = spec.seed
        self._events: list[RoundEvent] = []
        self.handle.subscribe(self._events.append)

    def apply(self, setting: Setting) -> None:
        """Use this K and this number of steps from now on."""
        if self.handle.k != setting.k:
            self.handle.k = setting.k
        if setting.steps != self.handle.steps:
            self.handle.steps = setting.steps

    def run(self, batch: Batch, robots: Sequence[Robot]) -> tuple[list[Any], list[str | None], bool]:
        """(answer, report) or Refused for each robot; a note if K was halved for it; and whether one round with the batch's
        setting answered all. After an error, or out of memory, each robot is answered alone.
        """
        found: dict[int, tuple[Any, str | None]] = {}
        free = [row for row, robot in enumerate(robots) if robot.fits is None]
        if len(free) > 1:
            waiting, mates = [batch.waiting[row] for row in free], [robots[row] for row in free]
            try:
                outcomes = self._round(waiting, mates, batch.setting)
                found = {row: (outcome, None) for row, outcome in zip(free, outcomes, strict=True)}
            except Exception as error:
                log.warning("a round of %d robots failed, each is tried alone: %a", len(free), error)
        together = len(found) == len(robots) or len(robots) == 1
        for row, (one, robot) in enumerate(zip(batch.waiting, robots, strict=True)):
            if row not in found:
                found[row] = self._alone(one, robot, batch.setting)
        rows = [found[row] for row in range(len(robots))]
        notes = [note for _, note in rows]
        return [outcome for outcome, _ in rows], notes, together and not any(notes)

    def _alone(self, request: Waiting, robot: Robot, setting: Setting) -> tuple[Any, str | None]:
        """The outcome of one robot, and a note if K was halved because it did not fit into memory."""
        if robot.rounds >= robot.retry_at:
            robot.fits = None
        k = min(setting.k, robot.fits or setting.k)
        while True:
            try:
                (outcome,) = self._round([request], [robot], setting._replace(k=k))
                break
            except (TooManyCandidates, torch.cuda.OutOfMemoryError) as error:
                problem: Exception = error
                if k > 1:
                    k //= 2
                    continue
            except Exception as error:
                problem = error
            log.error("the policy failed for robot %a: %s: %a", request.robot, type(problem).__name__, str(problem))
            return Refused("model", f"the policy failed: {type(problem).__name__}: {str(problem)[:500]}"), None
        if k == setting.k:
            return outcome, None
        if robot.fits is None or k < robot.fits:  # only a K that succeeded is a limit
            robot.fits, robot.retry_at = k, robot.rounds + RETRY
            log.warning("out of memory for robot %a: K=%d for its next %d rounds", request.robot, k, RETRY)
        return outcome, f"K={k}: more did not fit into memory"

    def _round(self, waiting: Sequence[Waiting], robots: Sequence[Robot], setting: Setting) -> list[Any]:
        """One round of the policy."""
        contents: list[Content] = [one.content for one in waiting]
        self.apply(setting)
        chunks = [robot.chunk for robot in robots]
        self.handle.history = torch.stack(chunks) if all(one is not None for one in chunks) else None  # type: ignore[arg-type]
        ids = [(one.robot, robot.episode) for one, robot in zip(waiting, robots, strict=True)]
        seeds = [self._seed_of(content, robot) for content, robot in zip(contents, robots, strict=True)]
        self._events.clear()
        with self.handle.seeded(seeds), self.handle.for_episodes(iter([*ids, *ids])):
            answers = self.served.infer(
                [Row(list(robot.observations), content.task) for content, robot in zip(contents, robots, strict=True)]
            )
        # A policy may draw one round for all rows, or one for each, in their order.
        rows = [(event, row) for event in self._events for row in range(len(event.candidates))]
        known = rows if len(rows) == len(answers) else [(None, 0)] * len(answers)
        return [
            (answer, self._settle(robot, event, row))
            for answer, robot, (event, row) in zip(answers, robots, known, strict=True)
        ]

    def _settle(self, robot: Robot, event: RoundEvent | None, row: int) -> dict[str, Any]:
        """Remember the round for the robot's next one; returns its report."""
        robot.rounds += 1
        if event is not None and self.handle.rule.remembers:
            robot.chunk = event.selection.chunk[row]
        alarm = {} if self.alarm is None or event is None else self.alarm.row_fields(event)[row]
        return {**describe_row(event, row), **alarm}

    def _seed_of(self, content: Content, robot: Robot) -> int:
        """The seed of a row: the request's, or from that of the Spec, the robot and its round, or a random one."""
        if content.ask.seed is not None:
            return row_seeds(derive_seed(content.ask.seed), 1)[0]  # as `handle.seeded(seed)` for one observation
        if self._seed is None:
            return secrets.randbits(62)
        name = hashlib.sha256(ascii(tuple(content.ask.robot)).encode()).digest()
        return derive_seed(self._seed, int.from_bytes(name[:8], "little"), robot.episode, robot.rounds)
