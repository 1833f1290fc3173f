"""Which robots are answered in the next round, and with which K. Pure: no threads, no sockets, the clock is an argument."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from keystone_robotics.serve.messages import Refused, Waiting

#: Times that are remembered for each size of a round; its latency is their 90th percentile.
REMEMBERED = 32


class Setting(NamedTuple):
    """How a round is drawn.

    Attributes:
        k: candidates per robot.
        steps: denoising steps; None for the policy's own number, or that of the Spec.
    """

    k: int
    steps: int | None = None


def settings_from(k: int, least_k: int = 1, steps: int | None = None, least_steps: int | None = None) -> list[Setting]:
    """From the best to the fastest: K is halved down to ``least_k``; then the steps, if a least number is given.

    >>> settings_from(16, 4)
    [Setting(k=16, steps=None), Setting(k=8, steps=None), Setting(k=4, steps=None)]
    >>> settings_from(2, 1, steps=10, least_steps=4)
    [Setting(k=2, steps=10), Setting(k=1, steps=10), Setting(k=1, steps=5), Setting(k=1, steps=4)]
    """
    found = [Setting(number, steps) for number in _halved(k, least_k)]
    if steps is not None and least_steps is not None:
        found += [Setting(found[-1].k, number) for number in _halved(steps, least_steps)[1:]]
    return found


def _halved(most: int, least: int) -> list[int]:
    numbers = [most]
    while numbers[-1] > least:
        numbers.append(max(numbers[-1] // 2, least))
    return numbers


class LatencyTable:
    """Measured seconds of rounds, by number of robots (rounded up to a power of two) and setting.

    >>> table = LatencyTable()
    >>> table.add(1, Setting(16), 0.010)
    >>> table.estimate(1, Setting(16)), table.estimate(4, Setting(16)), table.estimate(1, Setting(8))
    (0.01, 0.04, 0.0)
    """

    def __init__(self) -> None:
        self._times: dict[tuple[int, Setting], deque[float]] = {}

    def add(self, batch: int, setting: Setting, seconds: float) -> None:
        """A round of ``batch`` robots took so long."""
        self._times.setdefault((_power(batch), setting), deque(maxlen=REMEMBERED)).append(seconds)

    def estimate(self, batch: int, setting: Setting) -> float:
        """Seconds that nine in ten such rounds take at most. Larger rounds than measured: in proportion; none measured: 0."""
        size = _power(batch)
        while size:
            times = self._times.get((size, setting))
            if times:
                ranked = sorted(times)
                return ranked[math.ceil(0.9 * len(ranked)) - 1] * (_power(batch) / size)
            size //= 2
        return 0.0


def _power(batch: int) -> int:
    return 1 << (batch - 1).bit_length()


class Batch(NamedTuple):
    """What the model does next.

    Attributes:
        waiting: the requests of one round, at most one of a robot.
        setting: K and steps.
        late: how many of the deadlines cannot be met, not even with the fastest setting.
    """

    waiting: list[Waiting]
    setting: Setting
    late: int


@dataclass
class Scheduler:
    """Requests that wait, and the choice of K.

    There is no timer: while the model computes a round, the next one gathers.

    Attributes:
        settings: from the best to the fastest.
        latency: what rounds take.
        max_waiting: requests in the queue; further ones are refused.
        max_batch: robots in a round.
        max_age: seconds after which an observation is not answered any more.
    """

    settings: Sequence[Setting]
    latency: LatencyTable
    max_waiting: int = 256
    max_batch: int = 16
    max_age: float = math.inf

    def __post_init__(self) -> None:
        self._waiting: dict[str, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, request: Waiting) -> Waiting | None:
        """Queue a request; returns the older one of the same robot that it replaces.

        Raises:
            Refused: if the queue is full.
        """
        replaced = self._waiting.pop(request.robot, None)
        if len(self._waiting) >= self.max_waiting:
            raise Refused(
                "full", f"{self.max_waiting} requests are waiting already: try again, or start another server"
            )
        self._waiting[request.robot] = request
        return replaced

    def cancel(self, request: Waiting) -> bool:
        """Remove a request that has not begun; whether it was there."""
        if self._waiting.get(request.robot) is not request:
            return False
        del self._waiting[request.robot]
        return True

    def take_stale(self, now: float) -> list[Waiting]:
        """Remove the requests whose observation is older than ``max_age``."""
        stale = [one for one in self._waiting.values() if one.age(now) > self.max_age]
        for one in stale:
            del self._waiting[one.robot]
        return stale

    def next(self, now: float) -> Batch | None:
        """Remove the requests of the next round: those with the earliest deadline and what can be answered with it."""
        if not self._waiting:
            return None
        rounds = self._rounds()
        setting, late = self._choose(rounds, now)
        for one in rounds[0]:
            del self._waiting[one.robot]
        return Batch(rounds[0], setting, late)

    def _rounds(self) -> list[list[Waiting]]:
        """All that wait, in the rounds in which they would be answered."""
        rounds: list[list[Waiting]] = []
        filling: dict[object, list[Waiting]] = {}
        for one in sorted(self._waiting.values(), key=lambda one: (one.deadline, one.arrived)):
            mates = filling.get(one.group)
            if mates is None or len(mates) >= self.max_batch:
                mates = filling[one.group] = []
                rounds.append(mates)
            mates.append(one)
        return rounds

    def _choose(self, rounds: list[list[Waiting]], now: float) -> tuple[Setting, int]:
        """The best setting with which all deadlines are met; the fastest if some are missed even so, to catch up.

        A deadline that even a single robot could not meet counts for nobody: one client must not slow down the others' choice.
        """
        fastest = self.settings[-1]
        alone = self.latency.estimate(1, fastest)
        late = self._late(rounds, fastest, now)
        if any(one.deadline - one.arrived >= alone for one in late):
            return fastest, len(late)
        ignored = {id(one) for one in late}
        for setting in self.settings:
            if all(id(one) in ignored for one in self._late(rounds, setting, now)):
                return setting, len(late)
        raise AssertionError("the fastest setting is no later than itself")

    def _late(self, rounds: list[list[Waiting]], setting: Setting, now: float) -> list[Waiting]:
        late = []
        for mates in rounds:
            now += self.latency.estimate(len(mates), setting)
            late += [one for one in mates if now > one.deadline]
        return late
