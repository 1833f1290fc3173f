"""Rounds for several robots: what each needs of its last round, errors, and too little memory."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from keystone_robotics.handle import RoundEvent
from keystone_robotics.integrations.round_log import describe_row
from keystone_robotics.monitor.alarm import Alarm
from keystone_robotics.sample.event import Listener, Listeners
from keystone_robotics.sample.noise import derive_seed
from keystone_robotics.sample.seeds import row_seeds
from keystone_robotics.serve.messages import Content, Refused, Waiting
from keystone_robotics.serve.policy import Answer, Row
from keystone_robotics.serve.replica import Replicas, RoundFailed, RoundInputs
from keystone_robotics.serve.scheduler import Batch, Setting, check_spec

log = logging.getLogger("keystone.serve")

#: Rounds after which what did not fit into memory is tried again: a robot's K, or the number of robots.
RETRY = 100


@dataclass
class Robot:
    """What a robot's next round needs of its last ones.

    Attributes:
        observations: the last ones, newest last.
        chunk: (T, D) the last chunk that it got, if the rule looks back.
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


class RobotAnswer(NamedTuple):
    """What a round has brought a robot.

    Attributes:
        answer: of the policy.
        report: how it was made.
        chunk: (T, D) to be remembered once the robot has it; None if the rule does not look back.
    """

    answer: Answer
    report: dict[str, Any]
    chunk: torch.Tensor | None


class Rounds:
    """What is remembered of robots goes into each round, and comes out of it.

    Attributes:
        rule: that selects a candidate.
        alarm: among the listeners; None if there is none.

    Args:
        replicas: that compute.
        listeners: of rounds.
    """

    def __init__(self, replicas: Replicas, listeners: Sequence[Listener] = ()) -> None:
        check_spec(replicas.spec)
        self.rule = replicas.spec.bind()
        self.alarm = next((one for one in listeners if isinstance(one, Alarm)), None)
        self._listeners = Listeners(tuple(listeners))
        self._replicas, self._seed = replicas, replicas.spec.seed
        self._fits: int | None = None  # candidates of all robots in a round, once more did not fit into memory
        self._runs = self._retry_at = 0

    def run(self, batch: Batch, robots: Sequence[Robot]) -> tuple[list[RobotAnswer | Refused], list[str | None], bool]:
        """An outcome or Refused for each robot; a note if K was halved for it; and whether one round with the batch's setting
        answered all. After an error each robot is answered alone.
        """
        self._runs += 1
        found: dict[int, tuple[RobotAnswer | Refused, str | None]] = {}
        parts = self._parts(robots, batch.setting.k)
        for part in parts:
            waiting, mates = [batch.waiting[row] for row in part], [robots[row] for row in part]
            try:
                outcomes, k = self._round(waiting, mates, batch.setting)
            except RoundFailed as error:
                log.warning("a round of %d robots failed, each is tried alone: %a", len(part), str(error))
                if error.out_of_memory:
                    self._limit_to(len(part) * batch.setting.k // 2)
                continue
            if k < batch.setting.k:
                self._limit_to(len(part) * k)
            found |= {row: (one, _note(k, batch.setting)) for row, one in zip(part, outcomes, strict=True)}
        together = (len(parts) == 1 and len(found) == len(robots)) or len(robots) == 1
        for row, (one, robot) in enumerate(zip(batch.waiting, robots, strict=True)):
            if row not in found:
                found[row] = self._alone(one, robot, batch.setting)
        rows = [found[row] for row in range(len(robots))]
        notes = [note for _, note in rows]
        return [outcome for outcome, _ in rows], notes, together and not any(notes)

    def _parts(self, robots: Sequence[Robot], k: int) -> list[list[int]]:
        """The rows that are answered together: those with a last chunk, those without, and no more than fit into memory."""
        if self._runs >= self._retry_at:
            self._fits = None
        fits = self._fits  # read once: another replica's thread may change it
        most = len(robots) if fits is None else max(fits // k, 1)
        free = [row for row, robot in enumerate(robots) if robot.fits is None]
        alike = ([row for row in free if (robots[row].chunk is None) == new] for new in (False, True))
        parts = [rows[begin : begin + most] for rows in alike for begin in range(0, len(rows), most)]
        return [part for part in parts if len(part) > 1]

    def _limit_to(self, candidates: int) -> None:
        self._fits, self._retry_at = candidates, self._runs + RETRY
        log.warning("out of memory: at most %d candidates in each of the next %d rounds", candidates, RETRY)

    def _alone(self, request: Waiting, robot: Robot, setting: Setting) -> tuple[RobotAnswer | Refused, str | None]:
        """The outcome of one robot, and a note if K was halved because it did not fit into memory."""
        if robot.rounds >= robot.retry_at:
            robot.fits = None
        k = min(setting.k, robot.fits or setting.k)
        while True:
            try:
                (outcome,), k = self._round([request], [robot], setting._replace(k=k))
                break
            except RoundFailed as error:
                if error.out_of_memory and k > 1:
                    k //= 2
                    continue
                log.error("the policy failed for robot %a: %a", request.robot, str(error))
                return Refused("model", f"the policy failed: {error}"), None
        if k < setting.k and (robot.fits is None or k < robot.fits):  # only a K that succeeded is a limit
            robot.fits, robot.retry_at = k, robot.rounds + RETRY
            log.warning("out of memory for robot %a: K=%d for its next %d rounds", request.robot, k, RETRY)
        return outcome, _note(k, setting)

    def _round(
        self, waiting: Sequence[Waiting], robots: Sequence[Robot], setting: Setting
    ) -> tuple[list[RobotAnswer], int]:
        """One round of the policy, and how many candidates of each robot fitted into memory."""
        contents: list[Content] = [one.content for one in waiting]
        chunks = [robot.chunk for robot in robots]
        inputs = RoundInputs(
            [Row(list(robot.observations), content.task) for content, robot in zip(contents, robots, strict=True)],
            setting,
            [self._seed_of(content, robot) for content, robot in zip(contents, robots, strict=True)],
            [(one.robot, robot.episode) for one, robot in zip(waiting, robots, strict=True)],
            torch.stack(chunks) if all(one is not None for one in chunks) else None,  # type: ignore[arg-type]
        )
        result = self._replicas.compute(inputs)
        if self.alarm is not None:
            self.alarm.note_mismatch(result.mismatch)
            for content in contents:
                self.alarm.check_task(content.task)
        for event in result.events:
            self._listeners.emit(event)
        # A policy may draw one round for all rows, or one for each, in their order.
        rows = [(event, row) for event in result.events for row in range(len(event.candidates))]
        known = rows if len(rows) == len(robots) else [(None, 0)] * len(robots)
        for robot in robots:
            robot.rounds += 1
        outcomes = [self._robot_answer(*pair) for pair in zip(result.answers, known, strict=True)]
        return outcomes, setting.k if result.k is None else result.k

    def _robot_answer(self, answer: Answer, place: tuple[RoundEvent | None, int]) -> RobotAnswer:
        event, row = place
        alarm = {} if self.alarm is None or event is None else self.alarm.row_fields(event)[row]
        chunk = event.selection.chunk[row] if event is not None and self.rule.remembers else None
        return RobotAnswer(answer, {**describe_row(event, row), **alarm}, chunk)

    def _seed_of(self, content: Content, robot: Robot) -> int:
        """The seed of a row: the request's, or from that of the Spec, the robot and its round, or a random one."""
        if content.ask.seed is not None:
            return row_seeds(derive_seed(content.ask.seed), 1)[0]  # as `handle.seeded(seed)` for one observation
        if self._seed is None:
            return secrets.randbits(62)
        name = hashlib.sha256(ascii(tuple(content.ask.robot)).encode()).digest()
        return derive_seed(self._seed, int.from_bytes(name[:8], "little"), robot.episode, robot.rounds)


def _note(k: int, setting: Setting) -> str | None:
    return None if k == setting.k else f"K={k}: more did not fit into memory"
