"""One evaluation per folder at a time: a lock that the system releases when its process ends."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import IO

from keystone_robotics.errors import KeystoneError

log = logging.getLogger("keystone")

#: Error numbers that mean "held by another process"; any other means that the file system has no locks.
_HELD = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK}


class FolderLock:
    """An exclusive lock on a folder, held until `close`.

    Attributes:
        works: whether the folder's file system supports locks.

    Raises:
        KeystoneError: if another process holds it, or the folder is not writable.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / "lock").open("a")
        except OSError as error:
            problem = "it is a file, expected a folder" if folder.is_file() else error.strerror
            raise KeystoneError(f"cannot write to {folder}: {problem}") from None
        self.works = True
        try:
            _lock(self._file)
        except OSError as error:
            if error.errno in _HELD:
                self._file.close()
                raise KeystoneError(
                    f"another evaluation is running in {folder}: wait for it, or give another --out"
                ) from None
            self.works = False
            log.warning(
                "the file system of %s does not support locks (%s): make sure that no other evaluation writes there",
                folder,
                error.strerror,
            )

    def close(self) -> None:
        """Release the lock."""
        self._file.close()


def _lock(file: IO[str]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
