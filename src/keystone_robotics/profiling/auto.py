"""`keystone.attach(policy, k="auto")`: K from a stored profile, or from a quick one that the second round makes by itself."""

from __future__ import annotations

import copy
import datetime
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.profiling.fingerprint import describe_device, fingerprint_architecture, versions
from keystone_robotics.profiling.measure import PHASES, Plan, is_out_of_memory
from keystone_robotics.profiling.result import TOLERANCE, Profile, costs_of
from keystone_robotics.profiling.store import ENOUGH, find_profile, profiles_folder, save_profile
from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.proxies import original_class
from keystone_robotics.sample.timer import Mark

log = logging.getLogger("keystone")

KS = (1, 4, 8, 16, 32)
#: A K that takes this much longer than allowed is not near the limit: larger ones are not tried.
HOPELESS = 1.5
#: Rounds that can be replayed while K is not known; other threads may draw some meanwhile.
KEEP = 8


class AutoK:
    """A listener that sets K. After the first round it looks for a stored profile; after the second, whose times are not those
    of a cold start, it replays that round with several K and times them.

    Args:
        handle: of the policy.
        profiles: folder of the stored profiles, see `profiles_folder`.
    """

    def __init__(self, handle: Handle, profiles: str | os.PathLike[str] | None = None) -> None:
        self._handle = handle
        self._folder = profiles_folder(profiles)
        self._lock = threading.Lock()
        self._rounds = 0
        self._keep = handle.engine.keep

    def __deepcopy__(self, memo: dict[int, Any]) -> AutoK:
        twin = AutoK(copy.deepcopy(self._handle, memo), self._folder)  # a copied policy finds its K itself
        twin._rounds, twin._keep = self._rounds, self._keep
        return twin

    def subscribe(self) -> None:
        """From the next round on."""
        self._handle.engine.keep = max(self._keep, KEEP)
        self._handle.subscribe(self)

    def __call__(self, event: RoundEvent) -> None:
        engine = self._handle.engine
        if engine.k_given or not self._lock.acquire(blocking=False):  # given by the user; another thread is at it
            return
        try:
            self._rounds += 1
            found, source = self._find(event)
            if found is not None:
                self._set(found, source)
        finally:
            if engine.k_given:
                engine.keep = self._keep
                engine.forget_kept()
            self._lock.release()

    def _find(self, event: RoundEvent) -> tuple[Profile | None, str]:
        """A profile and where it is from; None before the second round, where none is stored."""
        device, batch = event.candidates.device, event.candidates.shape[0]
        fingerprint = fingerprint_architecture(self._handle, device, batch)
        stored = find_profile(fingerprint, self._folder)
        # A hook, say, keeps the policy off the fast path, or did when the profile was made.
        if stored is not None and stored.path == event.path:
            return stored, "a stored profile"
        if self._rounds < 2:
            return None, ""
        log.info(
            "KeyStone: no profile of this policy and path here; this round finds K, which takes some tens of rounds"
        )
        begin = time.perf_counter()
        found = self._measure(fingerprint, event)
        if found.doubt:  # this run has to go on with what it says; the next one should not
            log.warning("KeyStone: the profile is not kept. %s", found.doubt)
        else:
            save_profile(found, self._folder)
        return found, f"a profile made in the second round ({time.perf_counter() - begin:.1f} s)"

    def _set(self, found: Profile, source: str) -> None:
        k = found.best()
        self._handle.k = k
        if k > 1:
            log.info("KeyStone: K=%d, by %s in %s", k, source, self._folder)
            return
        why = "is free here; give k yourself, or a profile with a budget"
        if found.budget_ms is not None:
            why = f"stays within {found.budget_ms:g} ms; give k yourself, or a profile with a larger budget"
        log.warning("KeyStone is off (K=1): by %s in %s no larger K %s", source, self._folder, why)

    def _measure(self, fingerprint: str, event: RoundEvent) -> Profile:
        engine, device = self._handle.engine, event.candidates.device

        def timed(k: int) -> dict[str, float]:
            return _replay(engine, event, k)

        ks, stopped = _worth_trying(timed)
        plan = Plan(tuple(ks), ENOUGH)
        rounds = [{k: timed(k) for _, k in plan.cells(number)} for number in range(plan.rounds)]
        return Profile(
            policy=original_class(engine.owner).__name__,
            adapter=self._handle.adapter,
            batch=event.candidates.shape[0],
            device=describe_device(device, self._handle),
            versions=versions(self._handle),
            fingerprint=fingerprint,
            costs=costs_of({(1, k): [one[k] for one in rounds] for k in ks}, {}),
            memory="not measured",
            stopped=stopped,
            note="Made in the second round: of the call, only encoder, sampler and selection are in it.",
            date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            path=event.path,
        )


def _replay(engine: Engine, event: RoundEvent, k: int) -> dict[str, float]:
    """Milliseconds by phase of the same round with K candidates; with one, in the policy's own code."""
    begin = Mark.now()
    if engine.is_own_code(k):
        engine.replay_single(event.number)
        sampled = selected = engine.wait(event.candidates.device)
    else:
        candidates = engine.replay(event.number, k)
        sampled = engine.wait(event.candidates.device)
        engine.selector.select(candidates)
        selected = Mark.now()
    # Where the sampler encodes too, that is in the time of the replay already.
    encode = event.times.encode - event.times.encode_inside
    times = encode, begin.until(sampled, event.candidates.device), selected.host - sampled.host, 0.0
    return {phase: 1e3 * seconds for phase, seconds in zip(PHASES, times, strict=True)}


def _worth_trying(timed: Callable[[int], dict[str, float]]) -> tuple[list[int], int | None]:
    """The K that fit into memory and may be within the tolerance, warmed up; the first that does not fit, if one does not."""
    ks: list[int] = []
    one = 0.0
    for k in KS:
        try:
            timed(k)
            taken = min(sum(timed(k).values()) for _ in range(2))  # of one alone, a hiccup could end it all
        except Exception as error:
            if k == 1 or not is_out_of_memory(error):
                raise
            return ks, k
        ks.append(k)
        one = one or taken
        if taken > HOPELESS * (1 + TOLERANCE) * one:
            break
    return ks, None
