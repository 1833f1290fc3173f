"""Where a round's time goes: encode, denoise, select, and what the policy does after that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from keystone_robotics.handle import Handle
from keystone_robotics.profiling.clocks import Clock
from keystone_robotics.sample.adapter import Seam
from keystone_robotics.sample.drawn import Drawn
from keystone_robotics.sample.hook import Hook
from keystone_robotics.sample.shadow import class_instead, shadowed

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
        seams = [(module, name) for module, seam in adapter.seams(session.owner) for name in _ways_in(module, seam)]
        self._steps = bool(steps)
        session.choose = _Choosing(self, self._handle)
        try:
            with (
                _in_front(seams, self._seam),
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


def _ways_in(module: Any, seam: type[Seam]) -> list[str]:
    """The methods of a module that a seam stands in front of. Where it has hooks, its other methods are called from there."""
    own = {
        name: value
        for kind in reversed(seam.__mro__)
        if issubclass(kind, Seam)
        for name, value in vars(kind).items()
        if not name.startswith("__")
    }
    hooks = [name for name, value in own.items() if isinstance(value, Hook)]
    return hooks or [name for name, value in own.items() if callable(value) and _before(module, name)]


def _before(module: Any, name: str) -> bool:
    """Whether a module's own class has a method: what only a seam has is a helper of the seam."""
    return any(name in vars(kind) for kind in type(module).__mro__ if not issubclass(kind, Seam))


@contextlib.contextmanager
def _in_front(methods: list[tuple[Any, str]], wrap: Callable[[Callable[..., Any], str], Any]) -> Iterator[None]:
    """`shadowed`, also of hooks: they come before an object's attributes, so that only another class can come before them."""
    hooked = [(owner, name) for owner, name in methods if isinstance(getattr(type(owner), name, None), Hook)]
    classes = [(owner, type(owner)) for owner, _ in hooked]
    try:
        for owner, name in hooked:
            front = _Front(wrap(getattr(owner, name), name))
            kind = type(owner)
            owner.__class__ = class_instead(kind, kind.__name__, (kind,), {name: front})
        with shadowed([one for one in methods if one not in hooked], wrap):
            yield
    finally:
        for owner, kind in reversed(classes):
            owner.__class__ = kind


class _Front:
    """A class attribute that an object's own attribute does not hide."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        return self._value

    def __set__(self, instance: Any, value: Any) -> None:
        raise AttributeError("a policy that is being profiled keeps its sampler")
