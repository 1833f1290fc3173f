"""User objects by import name, ``package.module:name``: only the name is sent to worker processes and clusters."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from keystone_robotics.errors import KeystoneError, nearest_name

T = TypeVar("T")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\?.*)?")


def is_reference(name: str) -> bool:
    """Whether a name is ``package.module:name`` or ``package.module:name?option=value&…``.

    >>> is_reference("mine.robots:make?arm=left"), is_reference("lerobot/pi0"), is_reference("./mine:make")
    (True, False, False)
    """
    return _REFERENCE.fullmatch(name) is not None


def make_named(name: str, kind: type[T], **offered: Any) -> T:
    """Import an object by name; if it is a class or function instead, call it with the options in the name (strings).

    Args:
        name: see `is_reference`; modules in the current directory are found.
        kind: expected type of the result.
        **offered: further arguments; None values are omitted.

    Raises:
        KeystoneError: if it cannot be imported or called, or has another type.

    >>> from fractions import Fraction
    >>> make_named("fractions:Fraction?numerator=3/4", Fraction)
    Fraction(3, 4)
    >>> make_named("fractions:Fractoin", Fraction)
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: fractions has no 'Fractoin': did you mean 'Fraction'? ...
    """
    target, _, query = name.partition("?")
    thing = _imported(target)
    options = {**dict(parse_qsl(query, keep_blank_values=True)), **_given(offered)}
    if not isinstance(thing, kind) and callable(thing):
        _check_options(name, thing, options)
        try:
            thing = thing(**options)
        except (KeystoneError, ImportError):
            raise
        except Exception as error:
            raise KeystoneError(f"{name} failed: {type(error).__name__}: {error}") from error
    elif options:
        raise KeystoneError(f"{name} is an object, not a function: it takes no {', '.join(options)}")
    if not isinstance(thing, kind):
        raise KeystoneError(f"{name} is {type(thing).__name__!r}: expected {kind.__module__}.{kind.__name__}")
    return thing


def _given(offered: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in offered.items() if value is not None}


def _imported(target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does; not removed, because modules may import others later
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise KeystoneError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        known = [key for key in vars(module) if not key.startswith("_")]
        raise KeystoneError(f"{module_name} has no {attribute!r}: {nearest_name(attribute, known)}")
    return getattr(module, attribute)


def _check_options(name: str, thing: Any, options: dict[str, Any]) -> None:
    try:
        inspect.signature(thing).bind(**options)
    except TypeError as error:
        raise KeystoneError(f"{name}: {error}") from None
    except ValueError:
        pass  # builtins have no signature; the call reports wrong options
