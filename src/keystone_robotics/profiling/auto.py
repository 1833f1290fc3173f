"""`keystone.attach(policy, k="auto")`: K from a stored profile, or from a quick one that the first round makes by itself."""

from __future__ import annotations

import copy
import datetime
import functools
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.handle import Handle
from keystone_robotics.profiling.clocks import clock_for
from keystone_robotics.profiling.fingerprint import describe_device, fingerprint_policy, versions
from keystone_robotics.profiling.measure import Plan, is_out_of_memory
from keystone_robotics.profiling.phases import DENOISE, ENCODE, PHASES, SELECT
from keystone_robotics.profiling.result import TOLERANCE, Profile, costs_of
from keystone_robotics.profiling.store import ENOUGH, find_profile, profiles_folder, save_profile
from keystone_robotics.sample.adapter import Seam
from keystone_robotics.sample.drawn import Drawn
from keystone_robotics.sample.shadow import own_class

log = logging.getLogger("keystone")

KS = (1, 4, 8, 16, 32)
#: A method, and the arguments and named arguments it was called with.
EncoderCall = tuple[Callable[..., Any], tuple[tuple[Any, ...], dict[str, Any]]]
#: A K that takes this much longer than allowed is not near the limit: larger ones are not tried.
HOPELESS = 1.5


class FirstRound:
    """Finds K in the first round, on the real observation; see `keystone_robotics.sample.drawn.Tuner`.

    The round is at the seam then: it can be drawn and chosen from again with any K, but the encoder has run. So the arguments
    of the encoder's last call are kept, and it is called again on copies of them, for its time.

    Args:
        handle: of the policy.
        profiles: folder of the stored profiles, see `profiles_folder`.
    """

    def __init__(self, handle: Handle, profiles: str | os.PathLike[str] | None = None) -> None:
        self._handle = handle
        self._folder = profiles_folder(profiles)
        self._calls: dict[Any, EncoderCall] = {}
        self._at_seam = False

    def note(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._at_seam:  # the sampler encodes: that is timed with it
            return
        try:
            self._calls[method.__self__, method.__name__] = method, copy.deepcopy((args, kwargs))  # type: ignore[attr-defined]
        except Exception as error:  # whatever a policy hands to its encoder may refuse to be copied
            log.debug("KeyStone: an encoder is left out of the profile: %s", error)

    def reached(self) -> None:
        self._at_seam = True

    def __call__(self, draw: Callable[[int], Tensor], batch: int, device: torch.device) -> int:
        fingerprint = fingerprint_policy(self._handle, device, batch)
        found, source = find_profile(fingerprint, self._folder), "a stored profile"
        if (
            found is None or found.path != self._handle.path
        ):  # a hook, say, keeps it off the fast path, or did when it was made
            log.info(
                "KeyStone: no profile of this policy and path here; the first round finds K, which takes some tens of rounds"
            )
            begin = time.perf_counter()
            found = self._measure(fingerprint, draw, batch, device)
            source = f"a profile made in the first round ({time.perf_counter() - begin:.1f} s)"
            if found.doubt:  # this run has to go on with what it says; the next one should not
                log.warning("KeyStone: the profile is not kept. %s", found.doubt)
            else:
                save_profile(found, self._folder)
        k = found.best()
        if k == 1:
            why = "is free here; give k yourself, or a profile with a budget"
            if found.budget_ms is not None:
                why = f"stays within {found.budget_ms:g} ms; give k yourself, or a profile with a larger budget"
            log.warning("KeyStone is off (K=1): by %s in %s no larger K %s", source, self._folder, why)
        else:
            log.info("KeyStone: K=%d, by %s in %s", k, source, self._folder)
        return k

    def _measure(self, fingerprint: str, draw: Callable[[int], Tensor], batch: int, device: torch.device) -> Profile:
        clock = clock_for(device)
        calls = list(self._calls.values())  # another thread may be noting one of its own at this moment
        try:
            _encode(_copies(calls))
        except Exception as error:  # called out of its place it may fail; K is then found without it, a little smaller
            log.debug("KeyStone: the encoder is left out of the profile: %s", error)
            calls = []

        def timed(k: int) -> dict[str, float]:
            copies = _copies(calls)
            clock.start(ENCODE)
            _encode(copies)
            clock.switch(DENOISE)
            candidates = draw(k)
            clock.switch(SELECT)
            if k > 1:
                self._handle.pick(Drawn(0, (), candidates, 0, 0.0))
            return {**dict.fromkeys(PHASES, 0.0), **clock.stop()}

        ks, stopped = _worth_trying(timed)
        plan = Plan(tuple(ks), ENOUGH)
        rounds = [{k: timed(k) for _, k in plan.cells(number)} for number in range(plan.rounds)]
        name = own_class(self._handle.session.owner).__name__
        return Profile(
            name, self._handle.adapter, batch, describe_device(device, self._handle), versions(self._handle), fingerprint,
            costs_of({(1, k): [one[k] for one in rounds] for k in ks}, {}), "not measured", stopped=stopped,
            note="Made in the first round: of the call, only encoder, sampler and choice are in it.",
            date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(), path=self._handle.path,
        )  # fmt: skip


def _copies(calls: Sequence[EncoderCall]) -> list[EncoderCall]:
    """Every call of the encoder with arguments of its own: it may change them."""
    return [(method, copy.deepcopy(given)) for method, given in calls]


def _encode(calls: Sequence[EncoderCall]) -> None:
    for method, (args, kwargs) in calls:
        method(*args, **kwargs)


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


@functools.cache
def noting_seam(method: str) -> type[Seam]:
    """A seam on an encoder that tells the tuner, as long as there is one, how the encoder is called."""

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(super(seam, self), method)
        tuner = self._keystone.tuner
        if tuner is not None:
            tuner.note(original, args, kwargs)
        return original(*args, **kwargs)

    noted.__name__ = method
    seam = type("NotingSeam", (Seam,), {method: noted})
    return seam
