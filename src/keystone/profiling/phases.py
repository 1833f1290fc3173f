"""Where a round's time goes: encode, denoise, select, and what the policy does after that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from keystone.handle import Handle
from keystone.profiling.clocks import Clock
from keystone.sample.adapter import Seam
from keystone.sample.session import Drawn
from keystone.sample.shadow import shadowed

ENCODE, DENOISE, SELECT, OTHER = "encode", "denoise", "select", "other"
PHASES = (ENCODE, DENOISE, SELECT, OTHER)


class Watch:
    """Turns the clock from phase to phase while an attached policy makes a round.

    A call of the policy begins with encoding. When it reaches the seam, or the first step of denoising where the adapter names
    the method that makes one, denoising begins; calls of the encoder within the seam are encoding again. Selecting is what
    the handle does with the candidates. The rest of the call (units, queues) is "other".

    Attributes:
        rows: B of the last round, or None if none was chosen in.
        drawn: K of the last round, which is less than asked for where memory was too small; None if none was chosen in.
        reached: the last call came to the seam.
        mixed: encoders are called inside the seam, and no step was seen to tell where encoding ends: what they do not cover,
            a prefix run through a language model say, counts as denoising.
    """

    def __init__(self, handle: Handle, clock: Clock) -> None:
        self.clock = clock
        self.rows: int | None = None
        self.drawn: int | None = None
        self.reached = self.mixed = False
        self._handle = handle
        self._inside = self._encoding = 0
        self._steps = self._stepped = False

    def begin(self) -> None:
        """A call of the policy begins."""
        self.rows = self.drawn = None
        self.reached = self._stepped = False
        self.clock.start(ENCODE)

    def end(self) -> dict[str, float]:
        """The call has returned: milliseconds by phase."""
        spent = self.clock.stop()
        return {phase: spent.get(phase, 0.0) for phase in PHASES}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Stand in front of the seam, the encoders, the steps and the choice."""
        session, adapter = self._handle.session, self._handle.sampler
        steps = list(adapter.steps(session.owner))
        self._steps = bool(steps)
        session.choose = _Choosing(self, self._handle)
        try:
            with (
                shadowed(_overridden(session.swapped), self._seam),
                shadowed(adapter.encoders(session.owner), self._encoder),
                shadowed(steps, self._step),
            ):
                yield
        finally:
            session.choose = self._handle

    def _seam(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def entered(*args: Any, **kwargs: Any) -> Any:
            if not self._inside:
                self.reached = True
                if not self._steps:
                    self.clock.switch(DENOISE)
            self._inside += 1
            try:
                result = method(*args, **kwargs)
            finally:
                self._inside -= 1
            if not self._inside:
                # A sampler that goes another way than its adapter says is timed by its seam and its encoders from now on.
                self._steps = self._steps and self._stepped
                self.clock.switch(OTHER)
            return result

        return entered

    def _encoder(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def encoding(*args: Any, **kwargs: Any) -> Any:
            within = self._inside and not self._encoding and not self._steps
            self._encoding += 1
            if within:
                self.mixed = True
                self.clock.switch(ENCODE)
            try:
                return method(*args, **kwargs)
            finally:
                self._encoding -= 1
                if within:
                    self.clock.switch(DENOISE)

        return encoding

    def _step(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def stepping(*args: Any, **kwargs: Any) -> Any:
            if not self._stepped:
                self._stepped = True
                self.clock.switch(DENOISE)
            return method(*args, **kwargs)

        return stepping


class _Choosing:
    """The handle, timed. Everything else about it is the handle's."""

    def __init__(self, watch: Watch, handle: Handle) -> None:
        self._watch, self._handle = watch, handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def __call__(self, drawn: Drawn) -> Tensor:
        watch = self._watch
        watch.rows, watch.drawn = drawn.candidates.shape[:2]
        watch.clock.switch(SELECT)
        try:
            return self._handle(drawn)
        finally:
            watch.clock.switch(OTHER)


def _overridden(swapped: list[tuple[Any, type, type]]) -> list[tuple[Any, str]]:
    """The methods of a policy that a seam stands in front of, as (module, name)."""
    return [
        (module, name)
        for module, original, combined in swapped
        for kind in combined.__bases__[0].__mro__
        if issubclass(kind, Seam)
        for name, value in vars(kind).items()
        if callable(value) and not name.startswith("__") and callable(getattr(original, name, None))
    ]
