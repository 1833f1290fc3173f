"""Writing files atomically: an interruption never leaves half a file behind."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from keystone_robotics.errors import KeystoneError


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to; what was written takes its place at the end, and vanishes on any error.

    Every call has a path of its own: threads, and machines that share a folder, may write the same file at the same time.
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
        with written_whole(path) as draft:
            draft.write_text(text)
    except OSError as error:
        raise KeystoneError(f"cannot write {path}: {error.strerror}") from None
