"""Times the phases of a round and counts encoder calls."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from keystone_robotics.sample.event import RoundTimes


class Mark(NamedTuple):
    """A point in time: on the host's clock and, if CUDA is initialised, as a CUDA event."""

    host: float
    event: Any

    @classmethod
    def now(cls) -> Mark:
        # During CUDA graph capture, an event would become part of the graph.
        if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            return cls(time.perf_counter(), None)
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return cls(time.perf_counter(), event)

    def until(self, later: Mark, device: torch.device) -> float:
        """Seconds until a later mark; by CUDA events if both were recorded on the device."""
        if device.type == "cuda" and all(one is not None and one.device == device for one in (self.event, later.event)):
            later.event.synchronize()  # returns at once: the candidates were waited for
            return 1e-3 * float(self.event.elapsed_time(later.event))
        return later.host - self.host


def wait_for(device: torch.device) -> Mark:
    """Wait for the candidates; only for the current stream, since other work may run on this GPU."""
    mark = Mark.now()
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    elif device.type != "cpu":
        getattr(getattr(torch, device.type, None), "synchronize", lambda: None)()
    return Mark(Mark.now().host, mark.event)


class EncoderCall(NamedTuple):
    """One outermost call of an encoder."""

    name: str
    begin: Mark
    end: Mark


class _Thread(threading.local):
    """State of one thread: a policy may be called from several."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_round = False
        # Bounded: encoders also run outside of rounds (training), where calls are never collected.
        self.calls: deque[EncoderCall] = deque(maxlen=64)
        self.counts: list[dict[str, int]] = []
        self.begin: Mark | None = None
        self.first_step: Mark | None = None


class RoundTimer:
    """Records encoder calls and the first denoising step, reported by overrides."""

    def __init__(self) -> None:
        self._thread = _Thread()

    def __deepcopy__(self, memo: object) -> RoundTimer:
        return RoundTimer()

    def encode(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call an encoder, timed and counted."""
        state = self._thread
        for counts in state.counts:
            counts[name] += 1
        begin = None if state.depth else Mark.now()
        state.depth += 1
        try:
            return method(*args, **kwargs)
        finally:
            state.depth -= 1
            if begin is not None:
                state.calls.append(EncoderCall(name, begin, Mark.now()))

    def step(self) -> None:
        """A denoising step begins."""
        if self._thread.begin is not None and self._thread.first_step is None:
            self._thread.first_step = Mark.now()

    @contextlib.contextmanager
    def count(self, names: Sequence[str]) -> Iterator[dict[str, int]]:
        """Calls of encoders within the block and in this thread, by name."""
        counts = dict.fromkeys(names, 0)
        self._thread.counts.append(counts)
        try:
            yield counts
        finally:
            # By identity: two counters may be equal.
            self._thread.counts = [one for one in self._thread.counts if one is not counts]

    @contextlib.contextmanager
    def round(self) -> Iterator[None]:
        """A round; its records are dropped at the end, also if it raises."""
        state = self._thread
        outermost, state.in_round = not state.in_round, True
        try:
            yield
        finally:
            if outermost:
                state.calls.clear()
                state.begin, state.first_step, state.in_round = None, None, False

    def begin(self) -> None:
        """Sampling begins; only the last attempt of a round counts."""
        state = self._thread
        if state.begin is not None:
            state.calls = deque((one for one in state.calls if one.end.host <= state.begin.host), maxlen=64)
        state.begin, state.first_step = Mark.now(), None

    def end(self, device: torch.device, sampled: Mark, select: float) -> RoundTimes:
        """Times of the round: sampling ended at ``sampled``, selecting took ``select`` seconds."""
        state = self._thread
        begin = state.begin or sampled
        # The last call of each: others were outside of rounds (training).
        before = {call.name: call for call in state.calls if call.end.host <= begin.host}
        encode = sum(call.begin.until(call.end, device) for call in before.values())
        mixed = False
        # A later step belongs to the self-check.
        if state.first_step is not None and state.first_step.host <= sampled.host:
            inside = begin.until(state.first_step, device)
        else:
            within = [call for call in state.calls if begin.host < call.end.host <= sampled.host]
            inside, mixed = sum(call.begin.until(call.end, device) for call in within), bool(within)
        # Negative if the self-check sampled again on another path.
        return RoundTimes(encode + inside, max(0.0, begin.until(sampled, device) - inside), select, inside, mixed)
