"""Clocks that follow a round through its phases, on the host or on a GPU's own time line."""

from __future__ import annotations

import itertools
import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Sums up time by phase, from `start` to `stop`. Outside of that, `switch` does nothing."""

    def start(self, phase: str) -> None: ...

    def switch(self, phase: str) -> None: ...

    def stop(self) -> dict[str, float]:
        """Milliseconds by phase."""


class HostClock:
    """The host's clock. On a device that works on its own it waits at every switch, so that work counts where it belongs.

    >>> clock = HostClock(torch.device("cpu"))
    >>> clock.start("encode"); clock.switch("denoise"); sorted(clock.stop())
    ['denoise', 'encode']
    """

    def __init__(self, device: torch.device) -> None:
        self._wait = getattr(getattr(torch, device.type, None), "synchronize", lambda: None)
        self._times: list[tuple[str, float]] = []

    def start(self, phase: str) -> None:
        self._times = [(phase, self._now())]

    def switch(self, phase: str) -> None:
        if self._times:
            self._times.append((phase, self._now()))

    def stop(self) -> dict[str, float]:
        end, times = self._now(), self._times
        self._times = []
        spent: dict[str, float] = {}
        for (phase, begin), (_, until) in zip(times, [*times[1:], ("", end)], strict=True):
            spent[phase] = spent.get(phase, 0.0) + 1e3 * (until - begin)
        return spent

    def _now(self) -> float:
        self._wait()
        return time.perf_counter()


class CudaClock:
    """Events on the GPU's own time line: the host runs ahead of the GPU and would tell when work was launched, not when it was
    done. Only before the first event and before the last everything is waited for, so launches overlap with work as they do
    without a clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[tuple[str, Any]] = []

    def start(self, phase: str) -> None:
        torch.cuda.synchronize(self._device)  # nothing of what came before may count
        self._events = [(phase, self._record())]

    def switch(self, phase: str) -> None:
        if self._events:
            self._events.append((phase, self._record()))

    def stop(self) -> dict[str, float]:
        torch.cuda.synchronize(self._device)  # also what runs on streams of the policy's own
        events = [*self._events, ("", self._record())]
        self._events = []
        torch.cuda.synchronize(self._device)  # an event can be read when the GPU has passed it
        spent: dict[str, float] = {}
        for (phase, begin), (_, until) in itertools.pairwise(events):
            spent[phase] = spent.get(phase, 0.0) + begin.elapsed_time(until)
        return spent

    def _record(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def clock_for(device: torch.device) -> Clock:
    """The clock for a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock(device)
