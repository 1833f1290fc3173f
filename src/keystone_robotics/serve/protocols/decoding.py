"""Messages are decoded where they do not keep other clients waiting: the event loop has all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

#: Bytes of a message that takes longer to decode than to hand to a thread.
LARGE = 100_000


async def in_thread(read: Callable[[bytes], Value], message: bytes) -> Value:
    """The content of a message."""
    return await asyncio.get_running_loop().run_in_executor(None, read, message)


async def decode(read: Callable[[bytes], Value], message: bytes) -> Value:
    """The content of a message, in a thread if it is large."""
    return read(message) if len(message) <= LARGE else await in_thread(read, message)
