"""Files that must be there, and writing files atomically: an interruption never leaves a partial file."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from keystone_robotics.errors import KeystoneError


def check_file(path: Path, expected: str) -> None:
    """Raise a KeystoneError if there is no such file."""
    if not path.is_file():
        raise KeystoneError(f"there is no file {path}: expected {expected}")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces ``path`` at the end, and is deleted on any error.

    Every call has its own temporary path: threads, and machines that share a folder, may write the same file concurrently.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_file(path: Path, text: str) -> None:
    """Write a text file atomically.

    Raises:
        KeystoneError: if it cannot be written.
    """
    try:
        with atomic_write(path) as draft:
            draft.write_text(text)
    except OSError as error:
        raise KeystoneError(f"cannot write {path}: {error.strerror}") from None
