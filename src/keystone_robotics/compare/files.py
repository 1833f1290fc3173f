"""Reading other tools' JSON with errors that say which file and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError


def read_json(path: Path) -> Any:
    """What is in the file.

    Raises:
        KeystoneError: if it cannot be read or is no JSON.
    """
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise KeystoneError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise KeystoneError(f"{path} is damaged or no JSON: {error}") from None


def as_success(value: object, where: str) -> bool:
    """True or False, written as either or as 0 and 1.

    >>> as_success(1.0, "here"), as_success(False, "here")
    (True, False)
    """
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    raise KeystoneError(f"{where}: expected a success of true or false, got {value!r}")
