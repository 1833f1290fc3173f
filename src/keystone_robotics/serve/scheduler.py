"""Which robots are answered in the next round, and with which K. Pure: no threads, no sockets, the clock is an argument."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve.messages import Refused, Waiting
from keystone_robotics.spec import Spec

#: Rounds whose times are remembered. A round is planned to be as fast as the second slowest of them: 99 of 100 replies are to
#: be in time, and a single slow round does not count.
REMEMBERED = 128
#: Seconds after which a request goes before any that arrives later with a deadline: those without one must not starve.
PATIENCE = 2.0


class Setting(NamedTuple):
    """How a round is drawn.

    Attributes:
        k: candidates per robot.
        steps: denoising steps; None for the policy's own number, or that of the Spec.
    """

    k: int
    steps: int | None = None


def check_spec(spec: Spec) -> None:
    """Refuse a K that every round chooses for itself: a server chooses it by the deadlines of all that wait."""
    if spec.k_range is not None:
        least, most = spec.k_range.least, spec.k_range.most
        raise KeystoneError(f"k={spec.k}: a server sets K by deadlines: give k={most} and --least-k {least}")


@dataclass(frozen=True)
class Limits:
    """How much the scheduler takes on.

    Attributes:
        deadline_ms: of requests that give none.
        max_age: seconds after which an observation is not answered any more.
        max_batch: robots in a round.
        max_waiting: requests in the queue.
        least_k: K is not reduced below.
        least_steps: denoising steps are not reduced below; None: they are not reduced.
    """

    deadline_ms: float | None = None
    max_age: float = float("inf")
    max_batch: int = 16
    max_waiting: int = 256
    least_k: int = 1
    least_steps: int | None = None

    def settings(self, k: int, steps: int | None = None) -> list[Setting]:
        """From the best to the fastest: K is halved down to ``least_k``; then the steps, if a least number is given.

        >>> Limits(least_k=4).settings(16)
        [Setting(k=16, steps=None), Setting(k=8, steps=None), Setting(k=4, steps=None)]
        >>> Limits(least_steps=4).settings(2, steps=10)
        [Setting(k=2, steps=10), Setting(k=1, steps=10), Setting(k=1, steps=5), Setting(k=1, steps=4)]
        """
        found = [Setting(number, steps) for number in _halved(k, min(self.least_k, k))]
        if self.least_steps is None:
            return found
        if steps is None:
            raise KeystoneError(
                "the least number of steps needs a number to start from: give steps in the Spec, steps=10"
            )
        return found + [Setting(found[-1].k, number) for number in _halved(steps, self.least_steps)[1:]]

    def sizes(self, batches: bool) -> list[int]:
        """Numbers of robots in a round whose latency is measured.

        >>> Limits(max_batch=6).sizes(True), Limits().sizes(False)
        ([1, 2, 4, 6], [1])
        """
        found = [1]
        while batches and found[-1] < self.max_batch:
            found.append(min(2 * found[-1], self.max_batch))
        return found


def _halved(most: int, least: int) -> list[int]:
    numbers = [most]
    while numbers[-1] > least:
        numbers.append(max(numbers[-1] // 2, least))
    return numbers


class LatencyTable:
    """Seconds of rounds, by number of robots (rounded up to a power of two) and setting.

    Each size and setting is measured once, before the server listens. What later rounds take relative to that, of whatever
    size, corrects all of them: so K comes back when a machine that was busy is free again, though K was not tried meanwhile.

    >>> table = LatencyTable()
    >>> table.measure(1, Setting(16), 0.010)
    >>> table.estimate(1, Setting(16)), table.estimate(4, Setting(16)), table.estimate(1, Setting(8))
    (0.01, 0.04, 0.0)
    >>> table.measure(1, Setting(8), 0.006)
    >>> table.observe(1, Setting(8), 0.012)
    >>> table.estimate(1, Setting(16))
    0.02
    """

    def __init__(self) -> None:
        self._measured: dict[tuple[int, Setting], float] = {}
        self._ratios: deque[float] = deque(maxlen=REMEMBERED)

    def measure(self, batch: int, setting: Setting, seconds: float) -> None:
        """What a round takes when nothing disturbs it: the fastest counts."""
        cell = _power(batch), setting
        self._measured[cell] = min(seconds, self._measured.get(cell, math.inf))

    def observe(self, batch: int, setting: Setting, seconds: float) -> None:
        """What a round of a robot took."""
        expected = self.undisturbed(batch, setting)
        if expected:
            self._ratios.append(seconds / expected)
        else:  # nothing was measured
            self.measure(batch, setting, seconds)

    def estimate(self, batch: int, setting: Setting) -> float:
        """Seconds that 99 of 100 such rounds take at most. Larger rounds than measured: in proportion; none measured: 0."""
        ranked = sorted(self._ratios) or [1.0]
        return self.undisturbed(batch, setting) * ranked[max(len(ranked) - 2, 0)]

    def undisturbed(self, batch: int, setting: Setting) -> float:
        """Seconds that a round takes when nothing disturbs it."""
        size = _power(batch)
        while size:
            if (size, setting) in self._measured:
                return self._measured[size, setting] * (_power(batch) / size)
            size //= 2
        return 0.0


def _urgency(one: Waiting) -> tuple[float, float, float]:
    return min(one.deadline, one.arrived + PATIENCE), one.deadline, one.arrived


def _power(batch: int) -> int:
    return 1 << (batch - 1).bit_length()


class Batch(NamedTuple):
    """What the model does next.

    Attributes:
        waiting: the requests of one round, at most one of a robot.
        setting: K and steps.
        late: how many of the deadlines cannot be met, not even with the fastest setting.
        until: when the round will have ended.
        began: when it was taken.
    """

    waiting: list[Waiting]
    setting: Setting
    late: int
    until: float = math.inf
    began: float = 0.0


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
        replicas: rounds that are computed at a time.
        running: rounds that have begun.
    """

    settings: Sequence[Setting]
    latency: LatencyTable
    max_waiting: int = 256
    max_batch: int = 16
    max_age: float = math.inf
    replicas: int = 1

    def __post_init__(self) -> None:
        self._waiting: dict[Hashable, Waiting] = {}
        self.running: list[Batch] = []

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

    def take_all(self) -> list[Waiting]:
        """Remove all requests."""
        left = list(self._waiting.values())
        self._waiting.clear()
        return left

    def next(self, now: float) -> Batch | None:
        """Remove the requests of the next round: those with the earliest deadline and what can be answered with it.

        A robot whose last round is under way waits for its end, and replicas that are idle share what waits.
        """
        busy = {one.robot for batch in self.running for one in batch.waiting}
        ready = [one for one in self._waiting.values() if one.robot not in busy]
        if not ready:
            return None
        idle = max(self.replicas - len(self.running), 1)
        rounds = self._rounds(ready, min(self.max_batch, -(-len(ready) // idle)))
        setting, late = self._choose(rounds, now)
        for one in rounds[0]:
            del self._waiting[one.robot]
        batch = Batch(rounds[0], setting, late, now + self.latency.estimate(len(rounds[0]), setting), now)
        self.running.append(batch)
        return batch

    def finish(self, batch: Batch) -> None:
        """A round has ended."""
        self.running = [one for one in self.running if one is not batch]

    def _rounds(self, ready: list[Waiting], most: int) -> list[list[Waiting]]:
        """Requests in the rounds in which they would be answered."""
        rounds: list[list[Waiting]] = []
        filling: dict[object, list[Waiting]] = {}
        for one in sorted(ready, key=_urgency):
            mates = filling.get(one.group)
            if mates is None or len(mates) >= most:
                mates = filling[one.group] = []
                rounds.append(mates)
            mates.append(one)
        return rounds

    def _choose(self, rounds: list[list[Waiting]], now: float) -> tuple[Setting, int]:
        """The best setting with which all deadlines are met; the fastest if some are missed even so, to catch up.

        A deadline that even a single robot could never meet counts for nobody: one client must not lower the others' K. What is
        missed only because the machine has other work does count.
        """
        fastest = self.settings[-1]
        alone = self.latency.undisturbed(1, fastest)
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
        free = [max(batch.until, now) for batch in self.running]  # when each replica is
        free += [now] * max(self.replicas - len(free), 1)
        heapq.heapify(free)
        for mates in rounds:
            end = free[0] + self.latency.estimate(len(mates), setting)
            heapq.heapreplace(free, end)
            late += [one for one in mates if end > one.deadline]
        return late
