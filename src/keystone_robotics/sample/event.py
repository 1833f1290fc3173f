"""The event that listeners receive after a round."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from keystone_robotics.sample.adapter import Window
from keystone_robotics.select import ActionSpace, Selection

log = logging.getLogger("keystone")


class RoundTimes(NamedTuple):
    """Seconds of one round. On a GPU, encoding and sampling are measured with CUDA events.

    Attributes:
        encode: encoder methods; if the adapter names the denoising step, everything in the sampler before the first step.
        sample: the rest of the sampler; with adaptive K both draws, and the selection between them.
        select: selection.
        encode_inside: the part of ``encode`` inside the sampler.
        mixed: the sampler encodes and its first step was not detected: time outside of the encoders counts as sampling.
    """

    encode: float
    sample: float
    select: float
    encode_inside: float = 0.0
    mixed: bool = False


@dataclass(frozen=True)
class RoundEvent:
    """One finished round.

    Attributes:
        number: of the round since attaching.
        seeds: one per row; the noise of the round follows from them. Empty where the policy drew its own noise (K = 1).
        candidates: (B, K, T, D) as the policy's sampler returned them (normalised, padded).
        selection: batched over the B rows; how many steps to execute, if that is adaptive, and how many candidates were drawn
            for each row are its ``agreed_steps`` and ``drawn``.
        path: on which they were drawn: "fast", "plain", or "own" where the policy's own code ran untouched (K = 1).
        k: candidates per row; fewer than requested if memory ran out, or if the first few agreed (adaptive K).
        times: of encoding, sampling and selecting.
        episodes: one per row: whose round it is, see `Handle.for_episodes`; by default an `EpisodeRow`.
        space: dimensions and steps that counted in distances; None if all did.
        window: real dimensions and executed steps of the chunks; None if unknown.
    """

    number: int
    seeds: tuple[int, ...]
    candidates: Tensor
    selection: Selection
    path: str
    k: int
    times: RoundTimes
    episodes: tuple[Hashable, ...] = ()
    space: ActionSpace | None = None
    window: Window | None = None

    def __repr__(self) -> str:
        """One line: shapes and the selection, not the numbers."""
        shape = ", ".join(map(str, self.candidates.shape))
        index = self.selection.index.tolist() if len(self.candidates) <= 4 else f"{len(self.candidates)} rows"
        ms = 1e3 * (self.times.encode + self.times.sample + self.times.select)
        return f"<RoundEvent {self.number}: K={self.k}, candidates ({shape}), {self.path} path, selected {index}, {ms:.1f} ms>"


Listener = Callable[[RoundEvent], object]


class Listeners:
    """Any number of listeners. One that raises an `Exception` is logged and removed; the round continues.

    ``KeyboardInterrupt`` and ``SystemExit`` are not caught: Ctrl-C may arrive inside a listener, and an alarm may end the
    program. The round is complete by then; its selection is ``handle.last``. Listeners run one after the other, before the
    chunk is returned: one that blocks delays the robot, so slow work belongs in a thread of the listener's own.
    """

    def __init__(self, listeners: tuple[Listener, ...] = ()) -> None:
        self._listeners: list[tuple[object, Listener]] = [(object(), one) for one in listeners]
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def __deepcopy__(self, memo: dict[int, Any]) -> Listeners:
        # A copied policy reports to the same listeners, except those that define ``__deepcopy__``.
        own = (copy.deepcopy(one, memo) if hasattr(type(one), "__deepcopy__") else one for _, one in self._listeners)
        return Listeners(tuple(own))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; returns the function that removes this one."""
        if not callable(listener):
            raise TypeError(f"listener {listener!r}: expected a function that takes a RoundEvent")
        entry = (object(), listener)
        with self._lock:
            self._listeners.append(entry)

        return lambda: self._remove(entry)

    def find(self, kind: type) -> tuple[Listener, ...]:
        """The listeners of a class."""
        return tuple(one for _, one in self._listeners if isinstance(one, kind))

    def remove(self, listener: Listener) -> None:
        """End all subscriptions of a listener."""
        with self._lock:
            self._listeners = [entry for entry in self._listeners if entry[1] is not listener]

    def _remove(self, entry: tuple[object, Listener]) -> None:
        with self._lock:
            if entry in self._listeners:
                self._listeners.remove(entry)

    def emit(self, event: RoundEvent) -> None:
        """Call all listeners in the order of subscription."""
        for entry in list(self._listeners):
            try:
                entry[1](event)
            except Exception:  # noqa: PERF203 (one listener must not end the others)
                log.exception("KeyStone: listener %r failed in round %d and was removed", entry[1], event.number)
                self._remove(entry)
