"""`keystone.attach(policy, k="auto")`: K from a stored profile, or from a quick one that is made after the second round."""

from __future__ import annotations

import copy
import datetime
import logging
import os
import threading
import time
from typing import Any

import torch

from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.profiling.fingerprint import describe_device, fingerprint_architecture, steps_of, versions
from keystone_robotics.profiling.measure import PHASES, Cell, Measurements, Schedule, TimeRound
from keystone_robotics.profiling.result import TOLERANCE, Profile, summarize
from keystone_robotics.profiling.store import ENOUGH, find_profile, profiles_folder, save_profile
from keystone_robotics.sample.engine import SeededRequest
from keystone_robotics.sample.noise import preserve_rng
from keystone_robotics.sample.proxies import original_class
from keystone_robotics.sample.settings import find_k, settled
from keystone_robotics.sample.timer import Mark, wait_for

log = logging.getLogger("keystone")

KS = (1, 4, 8, 16, 32)
#: Larger K are not tried after one that takes this many times as long as the tolerance allows.
TOO_SLOW = 1.5


class AutoK:
    """A listener that sets K, and then unsubscribes. After the first round it looks for a stored profile; after the second,
    whose times are not those of a cold start, it replays that round with several K and times them.

    Args:
        handle: of the policy.
        profiles: folder of the stored profiles, see `profiles_folder`.
    """

    def __init__(self, handle: Handle, profiles: str | os.PathLike[str] | None = None) -> None:
        self._handle = handle
        self._folder = profiles_folder(profiles)
        self._lock = threading.Lock()
        self._rounds = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> AutoK:
        # A copied policy finds its K itself. Its engine may be in the making: nothing of it is read here.
        twin = AutoK.__new__(AutoK)
        vars(twin).update(vars(self), _handle=copy.deepcopy(self._handle, memo), _lock=threading.Lock())
        return twin

    def __call__(self, event: RoundEvent) -> None:
        engine = self._handle.engine
        if not self._lock.acquire(blocking=False):  # another thread is at it
            return
        try:
            if not settled(engine, "k_given"):
                self._rounds += 1
                self._find(event)
        except Exception:
            find_k(engine, settled(engine, "k"))  # there is no second attempt; K stays what it is
            raise
        finally:
            if settled(engine, "k_given"):
                engine.listeners.remove(self)
            self._lock.release()

    def _find(self, event: RoundEvent) -> None:
        """Set K, if a profile is stored or the round can be replayed."""
        device, batch = event.candidates.device, event.candidates.shape[0]
        fingerprint = fingerprint_architecture(self._handle, device, batch)
        stored = find_profile(fingerprint, self._folder)
        # A hook, say, keeps the policy off the fast path, or did when the profile was made.
        if stored is not None and stored.path == event.path:
            self._set(stored, "a stored profile")
            return
        kept = self._handle.engine.kept.get(event.number)
        if self._rounds < 2 or kept is None:
            return
        log.info("KeyStone: no profile of this policy and path here; finding K now, which takes some tens of rounds")
        begin = time.perf_counter()
        with torch.no_grad():
            found = self._measure(fingerprint, kept[0], event)
        if found.doubt:  # this run has to go on with what it says; the next one should not
            log.warning("KeyStone: the profile is not stored. %s", found.doubt)
        elif found.uncertain():
            unsure = ", ".join(map(str, found.uncertain()))
            log.info(
                "KeyStone: the profile is not stored: it leaves K = %s open; `keystone profile` measures longer", unsure
            )
        else:
            save_profile(found, self._folder)
        self._set(found, f"a profile made after the second round ({time.perf_counter() - begin:.1f} s)")

    def _set(self, found: Profile, source: str) -> None:
        k = found.best()
        if not find_k(self._handle.engine, k):
            return
        if k > 1:
            log.info("KeyStone: K=%d, by %s in %s", k, source, self._folder)
            return
        why = "is free here; give k yourself, or a profile with a budget"
        if found.budget_ms is not None:
            why = f"stays within {found.budget_ms:g} ms; give k yourself, or a profile with a larger budget"
        log.warning("KeyStone is off (K=1): by %s in %s no larger K %s", source, self._folder, why)

    def _measure(self, fingerprint: str, round: SeededRequest, event: RoundEvent) -> Profile:
        device = event.candidates.device
        found = _measure_in_turn(lambda cell: self._replay(round, event, cell.k))
        return Profile(
            policy=original_class(self._handle.engine.owner).__name__,
            adapter=self._handle.adapter,
            batch=event.candidates.shape[0],
            device=describe_device(device, self._handle),
            versions=versions(self._handle),
            fingerprint=fingerprint,
            costs=summarize(found.times, {}),
            memory="not measured",
            stopped=found.stopped,
            note="Made after the second round: only encoder, sampler and selection are timed, not the whole call.",
            date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            path=event.path,
            steps=steps_of(self._handle),
        )

    def _replay(self, round: SeededRequest, event: RoundEvent, k: int) -> dict[str, float]:
        """Milliseconds by phase of the same round with K candidates; with one, in the policy's own code."""
        engine, device = self._handle.engine, event.candidates.device
        if engine.is_own_code(k):
            with preserve_rng(device):
                begin = Mark.now()
                round.request.single()
                sampled = selected = wait_for(device)
        else:
            begin = Mark.now()
            candidates, _ = round.draw(event.path, k)
            sampled = wait_for(device)
            engine.select(round.request, candidates)
            selected = Mark.now()
        # Where the sampler encodes too, that is in the time of the replay already.
        encode = event.times.encode - event.times.encode_inside
        times = encode, begin.until(sampled, device), selected.host - sampled.host, 0.0
        return {phase: 1e3 * seconds for phase, seconds in zip(PHASES, times, strict=True)}


def _measure_in_turn(timed: TimeRound) -> Measurements:
    """Time the K that fit into memory and may be within the tolerance."""
    found, ks = Measurements(), []
    one = 0.0
    for k in KS:
        warm = [found.attempt(Cell(1, k), timed) for _ in range(3)]
        taken = [sum(phases.values()) for phases in warm[1:] if phases is not None]
        if not taken:
            break
        ks.append(k)
        fastest = min(taken)  # a single measurement may be disturbed
        one = one or fastest
        if fastest > TOO_SLOW * (1 + TOLERANCE) * one:
            break
    schedule = Schedule(tuple(ks), ENOUGH)
    for number in range(schedule.rounds):
        for cell in schedule.cells(number):
            found.add(cell, timed)
    return found
