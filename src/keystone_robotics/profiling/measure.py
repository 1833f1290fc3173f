"""The measurement itself: all K and numbers of steps in turn, round after round, so that drift hits all alike."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.profiling.memory import Peak, meter_for
from keystone_robotics.sample.settings import trial
from keystone_robotics.sample.timer import Mark

log = logging.getLogger("keystone")
T = TypeVar("T")

#: Where the time of a call of the policy goes.
PHASES = ("encode", "denoise", "select", "other")
#: Calls at each K before anything counts: kernels are chosen, memory is reserved, the self-check is made.
WARM_UP = 3


class OutOfMemory(Exception):
    """K candidates do not fit."""


class Neighbours(Protocol):
    """Other clients of the device."""

    def run(self, k: int) -> None:
        """Have all of them make rounds with K candidates from now on; 0 makes them wait. Returns when they do.

        Raises:
            OutOfMemory: if one of them cannot.
        """


class Cell(NamedTuple):
    """What one measurement is of.

    Attributes:
        clients: on the device.
        k: candidates per round.
        steps: denoising steps; None for as many as the policy takes as it is.
    """

    clients: int
    k: int
    steps: int | None = None


#: Milliseconds by phase of a round.
TimeRound = Callable[[Cell], dict[str, float]]


@dataclass(frozen=True)
class Schedule:
    """What to measure, and in which order.

    Attributes:
        ks: candidates per round, ascending, beginning with 1.
        rounds: of each.
        clients: on the device: (1,), or (1, N) for alone and with others.
        steps: numbers of denoising steps, beginning with None.
    """

    ks: tuple[int, ...]
    rounds: int
    clients: tuple[int, ...] = (1,)
    steps: tuple[int | None, ...] = (None,)

    def cells(self, number: int) -> list[Cell]:
        """The cells of a round, in an order that changes from round to round: none is always after the largest."""
        cells = [(k, steps) for steps in self.steps for k in self.ks]
        turn = number % len(cells)
        return [Cell(clients, *cell) for clients in self.clients for cell in (*cells[turn:], *cells[:turn])]


@dataclass(frozen=True)
class Subject:
    """An attached policy, and how to have it make one round.

    Attributes:
        handle: of the policy.
        prepare: is called before every round, untimed.
        act: makes one.
        device: on which it runs.
    """

    handle: Handle
    prepare: Callable[[], object]
    act: Callable[[], object]
    device: torch.device


@dataclass
class Measurements:
    """What was measured.

    Attributes:
        times: the milliseconds by phase of every round.
        peaks: by (K, steps).
        stopped: the smallest K that did not fit into memory.
        path: on which K > 1 were drawn.
        mixed: see `RoundTimes`.
    """

    times: dict[Cell, list[dict[str, float]]] = field(default_factory=dict)
    peaks: dict[tuple[int, int | None], Peak | None] = field(default_factory=dict)
    stopped: int | None = None
    path: str = "plain"
    mixed: bool = False

    def at_steps(
        self, steps: int | None
    ) -> tuple[dict[Cell, list[dict[str, float]]], dict[tuple[int, int | None], Peak | None]]:
        """Times and peaks of that number of steps only, as if it were the policy's own."""
        times = {Cell(cell.clients, cell.k): taken for cell, taken in self.times.items() if cell.steps == steps}
        return times, {(k, None): peak for (k, one), peak in self.peaks.items() if one == steps}

    def add(self, cell: Cell, timed: TimeRound) -> None:
        """Time one round, and note it."""
        taken = self.attempt(cell, timed)
        if taken is not None:
            self.times.setdefault(cell, []).append(taken)

    def attempt(self, cell: Cell, timed: Callable[[Cell], T]) -> T | None:
        """``timed(cell)``; None if its K do not fit into memory, and neither it nor a larger K is tried again."""
        k = cell.k
        if self.stopped is not None and k >= self.stopped:
            return None
        try:
            return timed(cell)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if k == 1:
                raise KeystoneError("not even one candidate fits into memory") from error
        self.stopped = k
        self.times = {cell: rounds for cell, rounds in self.times.items() if cell.k < k}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        log.warning("KeyStone: K = %d does not fit into memory; larger K are not tried", k)
        return None


class PhaseRecorder:
    """A listener that tells where the time of one call of the policy went.

    Attributes:
        event: of the last round.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._own_steps = subject.handle.steps
        self.event: RoundEvent | None = None

    def __call__(self, event: RoundEvent) -> None:
        self.event = event

    def time_round(self, cell: Cell) -> dict[str, float]:
        """Milliseconds by phase of one call of the policy.

        Raises:
            OutOfMemory: if the engine went on with fewer.
        """
        handle = self._subject.handle
        handle.k, handle.steps = cell.k, self._own_steps if cell.steps is None else cell.steps
        phases = self.time_call()
        if self.event is not None and self.event.k < cell.k:
            raise OutOfMemory
        return phases

    def time_call(self) -> dict[str, float]:
        """Milliseconds by phase of one call of the policy as it is attached."""
        subject, self.event = self._subject, None
        subject.prepare()
        _synchronize(subject.device)
        begin = Mark.now()
        subject.act()
        _synchronize(subject.device)
        total = 1e3 * begin.until(Mark.now(), subject.device)
        event: RoundEvent | None = self.event
        if event is None:
            raise KeystoneError(
                "no round was drawn: this call of the policy does not reach the sampler that was attached to"
            )
        encode, denoise, select = (1e3 * seconds for seconds in event.times[:3])
        if event.path == "own":  # selected only because there is a listener
            total, select = total - select, 0.0
        return dict(zip(PHASES, (encode, denoise, select, max(0.0, total - encode - denoise - select)), strict=True))


def measure(
    subject: Subject,
    schedule: Schedule,
    neighbours: Neighbours | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measurements:
    """Make all rounds of a schedule, as a rehearsal: the policy's listeners, counters and history do not notice.

    Args:
        subject: the attached policy; its K and its steps are as they were afterwards.
        schedule: what to measure.
        neighbours: the other clients, where the schedule has more than one.
        progress: is told how many measurements are there, and how many there will be.
    """
    recorder = PhaseRecorder(subject)
    try:
        with torch.no_grad(), trial(subject.handle.engine, recorder):
            return _measure(recorder, schedule, subject.device, neighbours, progress)
    finally:
        subject.prepare()  # what is left of the last chunk was meant for the profile's observation, and must not be executed
        if neighbours is not None:
            neighbours.run(0)


def _measure(
    recorder: PhaseRecorder,
    schedule: Schedule,
    device: torch.device,
    neighbours: Neighbours | None,
    progress: Callable[[int, int], None],
) -> Measurements:
    found, meter = Measurements(), meter_for(device)

    def warm_up(cell: Cell) -> Peak | None:
        for _ in range(WARM_UP):
            recorder.time_round(cell)
        meter.begin()
        recorder.time_round(cell)
        return meter.end()

    def time_among(cell: Cell) -> dict[str, float]:
        if neighbours is not None:
            neighbours.run(cell.k if cell.clients > 1 else 0)
        return recorder.time_round(cell)

    if neighbours is not None:
        neighbours.run(0)
    for steps in schedule.steps:
        for k in schedule.ks:
            found.peaks[k, steps] = found.attempt(Cell(1, k, steps), warm_up)
    cells = [cell for number in range(schedule.rounds) for cell in schedule.cells(number)]
    for done, cell in enumerate(cells):
        progress(done, len(cells))
        found.add(cell, time_among)
        event = recorder.event
        if event is not None:
            found.mixed |= event.times.mixed
            found.path = event.path if event.k > 1 else found.path
    progress(len(cells), len(cells))
    return found


def _synchronize(device: torch.device) -> None:
    wait = getattr(getattr(torch, device.type, None), "synchronize", None)
    if wait is not None:
        wait()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was too small, on a GPU or on the host.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    """
    if isinstance(error, (OutOfMemory, MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
