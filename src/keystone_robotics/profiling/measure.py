"""The measurement itself: all K in turn, round after round, so that drift hits all alike."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle
from keystone_robotics.profiling.clocks import clock_for
from keystone_robotics.profiling.journal import Facts, Journal
from keystone_robotics.profiling.memory import meter_for
from keystone_robotics.profiling.phases import Watch

log = logging.getLogger("keystone")

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


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        ks: candidates per round, ascending, beginning with 1.
        rounds: of each.
        clients: on the device: (1,), or (1, N) for alone and with others.
    """

    ks: tuple[int, ...]
    rounds: int
    clients: tuple[int, ...] = (1,)

    def cells(self, number: int) -> list[tuple[int, int]]:
        """The (clients, K) of a round, in an order that changes from round to round: none is always after the largest."""
        turn = number % len(self.ks)
        return [(clients, k) for clients in self.clients for k in (*self.ks[turn:], *self.ks[:turn])]


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


def measure(
    subject: Subject,
    plan: Plan,
    journal: Journal,
    neighbours: Neighbours | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Facts:
    """Fill the journal with what is missing in it; the facts about the run that measured last.

    Args:
        subject: the attached policy; its K is as it was afterwards.
        plan: what to measure.
        journal: what was measured already; smaller where memory ends.
        neighbours: the other clients, where the plan has more than one.
        progress: is told how many measurements are there, and how many there will be.
    """
    watch = Watch(subject.handle, clock_for(subject.device))
    before, tuner = subject.handle.k, subject.handle.session.tuner
    try:
        with watch.watching(), torch.no_grad():
            return _measure(subject, plan, journal, neighbours, progress, watch)
    finally:
        subject.handle.k = before
        subject.handle.session.tuner = tuner  # setting K had ended k="auto"
        subject.prepare()  # what is left of the last chunk was meant for the profile's observation, and must not be executed
        if neighbours is not None:
            neighbours.run(0)


def _measure(
    subject: Subject,
    plan: Plan,
    journal: Journal,
    neighbours: Neighbours | None,
    progress: Callable[[int, int], None],
    watch: Watch,
) -> Facts:
    meter = meter_for(subject.device)
    cells = [(number, *cell) for number in range(plan.rounds) for cell in plan.cells(number)]
    if journal.facts and all(journal.has(*cell) or not _fits(journal, cell[-1]) for cell in cells):
        return journal.facts
    if neighbours is not None:
        neighbours.run(0)
    killer = journal.killed()
    if killer is not None and _fits(journal, killer):
        log.warning(
            "KeyStone: the process was killed twice in its first rounds with K = %d, as where memory ends", killer
        )
        journal.stop(killer)
    for k in plan.ks:
        if _fits(journal, k):
            with _Memory(journal, k), journal.trying(k):
                for _ in range(WARM_UP):
                    _round(subject, watch, k)
                if k not in journal.peaks:
                    meter.begin()
                    _round(subject, watch, k)
                    journal.add_peak(k, meter.end())
    for done, (number, clients, k) in enumerate(cells):
        progress(done, len(cells))
        if journal.has(number, clients, k) or not _fits(journal, k):
            continue
        with _Memory(journal, k):
            if neighbours is not None:
                neighbours.run(k if clients > 1 else 0)
            journal.add_time(number, clients, k, _round(subject, watch, k))
    progress(len(cells), len(cells))
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    facts = Facts(subject.handle.path, watch.mixed, today)
    journal.conclude(facts)
    return facts


def _fits(journal: Journal, k: int) -> bool:
    return journal.stopped is None or k < journal.stopped


def _round(subject: Subject, watch: Watch, k: int) -> dict[str, float]:
    """Milliseconds by phase of one round."""
    subject.handle.k = k
    subject.prepare()
    watch.begin()
    try:
        subject.act()
    finally:
        spent = watch.end()
    if not watch.reached:
        raise KeystoneError("no round was drawn: this call of the policy does not pass through the adapter's seam")
    if watch.drawn is not None and watch.drawn < k:
        raise OutOfMemory  # the session went on with fewer
    return spent


class _Memory:
    """Within this block, running out of memory ends what is tried with K and more."""

    def __init__(self, journal: Journal, k: int) -> None:
        self._journal, self._k = journal, k

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is None or not is_out_of_memory(error):
            return False
        if self._k == 1:
            raise KeystoneError("not even one candidate fits into memory") from error
        self._journal.stop(self._k)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        log.warning("KeyStone: K = %d does not fit into memory; larger K are not tried", self._k)
        return True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was too small, on a GPU or on the host.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    """
    if isinstance(error, (OutOfMemory, MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def complete(plan: Plan, journal: Journal, ks: Sequence[int]) -> dict[tuple[int, int], list[dict[str, float]]]:
    """By (clients, K) the rounds that were measured with every K that fits, in order."""
    fitting = [(clients, k) for clients in plan.clients for k in ks if _fits(journal, k)]
    numbers = [number for number in range(plan.rounds) if all(journal.has(number, *cell) for cell in fitting)]
    return {cell: [journal.times[cell][number] for number in numbers] for cell in fitting}
