"""Reads files of other tools, which may hold anything; errors name the file and the problem in one line."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError

#: Bytes of the largest result that is read; 100,000 episodes take 30 MB.
LARGEST_FILE = 256 << 20


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        KeystoneError: if it cannot be read, is not JSON or too large.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise KeystoneError(f"{path} has {size >> 20} MB: expected a result of at most {LARGEST_FILE >> 20} MB")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KeystoneError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise KeystoneError(f"{path} is damaged or not JSON: {_short(error)}") from None


@contextlib.contextmanager
def reading(path: Path, tool: str) -> Iterator[None]:
    """Whatever goes wrong with the values of a file within this block is an error about the file."""
    try:
        yield
    except KeystoneError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise KeystoneError(f"{path} is not in the format of {tool}: {_short(error)}") from None


def _short(error: Exception) -> str:
    """An error in one line; it may quote a file of any length."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 200 else text[:200] + "…"


def as_success(value: object, where: str) -> bool:
    """A success flag, written as true / false or as 1 / 0.

    >>> as_success(1.0, "here"), as_success(False, "here")
    (True, False)
    """
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    raise KeystoneError(f"{where}: expected a success of true or false, got {repr(value)[:80]}")


def as_whole(value: object, name: str) -> int:
    """A whole number of at most 64 bits.

    >>> as_whole(3.0, "episode"), as_whole("4", "episode")
    (3, 4)
    """
    number = int(value)  # type: ignore[call-overload]
    if not -(2**63) <= number < 2**64 or isinstance(value, (bytes, bool)):
        raise ValueError(f"{name} is not a whole number of 64 bits")
    return int(number)


def as_time(seconds: object) -> float | None:
    """A number of seconds or milliseconds, or None if that is not a time.

    >>> as_time(2), as_time(float("nan")), as_time(10**400), as_time("2")
    (2.0, None, None, None)
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    return float(seconds) if 0 <= seconds < 1e12 and math.isfinite(seconds) else None
