"""Who is inside the overridden methods of a policy: `detach` in one thread waits for the rounds of the others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from keystone_robotics.errors import KeystoneError

#: Seconds that `detach` waits for a round to end.
DETACH_SECONDS = 60.0

#: A call of one of the policy's own methods: the bound method with its arguments.
Call = partial[Any]


class Usage:
    """Counts the threads inside, and lets one of them have the policy for itself."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside = 0
        self._closed = False
        self._thread = threading.local()

    @property
    def is_inside(self) -> bool:
        """Whether this thread is inside."""
        return self.depth > 0

    @property
    def depth(self) -> int:
        """How many overridden methods this thread is inside of."""
        return len(self._calls)

    @property
    def call(self) -> Call | None:
        """The innermost of these methods: the policy's own, with what it was called with; None outside."""
        calls = self._calls
        return calls[-1] if calls else None

    @property
    def _calls(self) -> list[Call]:
        calls: list[Call] = vars(self._thread).setdefault("calls", [])
        return calls

    def enter(self, call: Call) -> None:
        """Called at the begin of an overridden method; waits only where this thread is not inside already."""
        if not self.is_inside:
            with self._condition:
                self._condition.wait_for(lambda: not self._closed)
                self._inside += 1
        self._calls.append(call)

    def leave(self) -> None:
        """Called at its end."""
        self._calls.pop()
        if not self.is_inside:
            with self._condition:
                self._inside -= 1
                self._condition.notify_all()
            later = vars(self._thread).pop("later", None)
            if later is not None:
                later()

    @property
    def is_bypassed(self) -> bool:
        """Whether this thread runs the policy's own methods, see `bypass`."""
        return getattr(self._thread, "bypassed", False)

    @contextlib.contextmanager
    def bypass(self) -> Iterator[None]:
        """Within this block and thread the policy's own methods run, as if it were not attached."""
        before, self._thread.bypassed = self.is_bypassed, True
        try:
            yield
        finally:
            self._thread.bypassed = before

    def when_outside(self, function: Callable[[], None]) -> None:
        """Call a function when this thread has left; it is inside."""
        self._thread.later = function

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Within this block nobody is inside, and whoever wants to enter waits. Not for a thread that is inside.

        Raises:
            KeystoneError: if a round runs for longer than `DETACH_SECONDS`.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: not self._closed, DETACH_SECONDS):
                raise KeystoneError(f"another thread has been detaching this policy for {DETACH_SECONDS:.0f} s")
            self._closed = True
        try:
            with self._condition:
                if not self._condition.wait_for(lambda: self._inside == 0, DETACH_SECONDS):
                    raise KeystoneError(
                        f"a round of this policy has been running for {DETACH_SECONDS:.0f} s in another thread: it stays "
                        "attached"
                    )
            yield
        finally:
            with self._condition:
                self._closed = False
                self._condition.notify_all()
