"""Reads JSON of other tools; errors name the file and the problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        KeystoneError: if it cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise KeystoneError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise KeystoneError(f"{path} is damaged or not JSON: {error}") from None


def as_success(value: object, where: str) -> bool:
    """A success flag, written as true / false or as 1 / 0.

    >>> as_success(1.0, "here"), as_success(False, "here")
    (True, False)
    """
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    raise KeystoneError(f"{where}: expected a success of true or false, got {value!r}")
