"""What clients have begun and not ended. When it takes too long, or all together are too much, the oldest is closed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass
class _Begun:
    size: int
    timer: asyncio.TimerHandle


class Unfinished:
    """Connections with a handshake or a message under way. A newcomer is never refused for those who stall before it.

    Args:
        most: of all sizes together.
        seconds: for each.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._begun: dict[asyncio.BaseTransport, _Begun] = {}  # the oldest first
        self._total = 0

    def grow(self, transport: asyncio.WriteTransport, size: int) -> None:
        """A connection has begun something, or goes on with it: so many more bytes, or one handshake."""
        if transport not in self._begun:
            timer = asyncio.get_running_loop().call_later(self._seconds, self._close, transport)
            self._begun[transport] = _Begun(0, timer)
        self._begun[transport].size += size
        self._total += size
        while self._total > self._most and len(self._begun) > 1:
            self._close(next(iter(self._begun)))  # type: ignore[arg-type]

    def end(self, transport: asyncio.BaseTransport) -> None:
        """It is complete, or its connection is gone."""
        found = self._begun.pop(transport, None)
        if found is not None:
            found.timer.cancel()
            self._total -= found.size

    def _close(self, transport: asyncio.WriteTransport) -> None:
        self.end(transport)
        transport.abort()
