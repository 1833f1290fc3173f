"""Rerun, imported when it is needed."""

from __future__ import annotations

import re
from typing import Any

from keystone_robotics.errors import KeystoneError

OLDEST = (0, 24)


class RerunUnavailable(KeystoneError, ImportError):
    """rerun-sdk is not installed, or too old."""


def import_rerun() -> Any:
    """The module ``rerun``.

    Raises:
        RerunUnavailable: in one line, with what to install.
    """
    try:
        import rerun
    except ImportError as error:
        raise RerunUnavailable(f'this needs Rerun ({error}): pip install "keystone-robotics[rerun]"') from None
    version = getattr(rerun, "__version__", "")  # another package of this name has none
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RerunUnavailable(f"rerun-sdk {version or 'unknown'} is too old: expected {oldest} or newer")
    return rerun
