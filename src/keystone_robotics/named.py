"""User objects by import name, ``package.module:name``: only the name is sent to worker processes and clusters.

A name may come from a file of unknown origin, so nothing is called unless it was made for that (`factory`): any other
function, ``os:system``, is refused. Importing the module runs its code; modules on Python's path and in the current directory
are trusted (docs/security.md).
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from keystone_robotics.errors import KeystoneError, nearest_name

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_MARK = "_keystone_factory"
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\?.*)?")


def is_reference(name: str) -> bool:
    """Whether a name is ``package.module:name`` or ``package.module:name?option=value&…``.

    >>> is_reference("mine.robots:make?arm=left"), is_reference("lerobot/pi0"), is_reference("./mine:make")
    (True, False, False)
    """
    return _REFERENCE.fullmatch(name) is not None


def factory(function: F) -> F:
    """Mark a function that may be called by its name, ``package.module:function?option=value``.

    Not needed for a class, nor for a function that is annotated with what it returns (a `Benchmark`, an `Agent`).

    >>> @factory
    ... def make(checkpoint, device="cpu"): ...
    """
    if not inspect.isfunction(function):
        raise TypeError(f"factory marks functions: {function!r} is a {type(function).__name__}")
    vars(function)[_MARK] = True
    return function


def make_named(name: str, kind: type[T] | tuple[type[T], ...], **offered: Any) -> T:
    """Import an object by name; if it makes such objects instead, call it with the options in the name (strings).

    Called are subclasses of ``kind``, functions annotated to return one, and functions marked with `factory`; everything else
    is refused before it is called. Functions of all sorts return a built-in ``kind`` (tuple), so there only the mark counts.

    Args:
        name: see `is_reference`; modules in the current directory are found.
        kind: expected type of the result, or several.
        **offered: further arguments; None values are omitted.

    Raises:
        KeystoneError: if it cannot be imported, may not be called, cannot be called, or has another type.

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
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if any(_makes(thing, one) for one in kinds):
        _check_options(name, thing, options)
        try:
            thing = thing(**options)
        except (KeystoneError, ImportError):
            raise
        except (Exception, SystemExit) as error:
            raise KeystoneError(f"{name} failed: {type(error).__name__}: {error}") from error
    elif inspect.isroutine(thing) or inspect.isclass(thing):
        raise KeystoneError(f"{name} was not called: it is {_described(thing)}, {_expected(kinds[0])}")
    elif options:
        raise KeystoneError(f"{name} is an object, not a function: it takes no {', '.join(options)}")
    if not isinstance(thing, kinds):
        raise KeystoneError(f"{name} is {type(thing).__name__!r}: expected {kinds[0].__module__}.{kinds[0].__name__}")
    return thing


def load_function(name: str) -> Callable[..., Any]:
    """A function by name, for a name that the user typed: it is called with the caller's arguments.

    Raises:
        KeystoneError: if it cannot be imported, or is none.

    >>> load_function("math:hypot")(3, 4)
    5.0
    """
    if not is_reference(name) or "?" in name:
        raise KeystoneError(f"{name!r} is no function: expected package.module:function")
    found = _imported(name)
    if not callable(found):
        raise KeystoneError(f"{name} is {type(found).__name__!r}: expected a function")
    return found  # type: ignore[no-any-return]


def _makes(thing: Any, kind: type) -> bool:
    """Whether a class or function is one that makes objects of a kind; looks, and calls nothing."""
    # In the function's own dictionary: objects with a `__getattr__` have every attribute.
    if inspect.isfunction(thing) and vars(thing).get(_MARK) is True:
        return True
    if kind.__module__ == "builtins":
        return False
    if inspect.isfunction(thing):
        try:
            thing = typing.get_type_hints(thing).get("return")
        except Exception:  # a name that exists for type checkers only
            return False
    return inspect.isclass(thing) and issubclass(thing, kind)


def _described(thing: Any) -> str:
    return f"the {'class' if inspect.isclass(thing) else 'function'} {thing.__module__}.{thing.__qualname__}"


def _expected(kind: type) -> str:
    marked = "a function marked with @keystone_robotics.factory"
    if kind.__module__ == "builtins":
        return f"expected {marked}"
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return f"expected {article} {kind.__name__}, its class, a function annotated with `-> {kind.__name__}`, or {marked}"


def _given(offered: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in offered.items() if value is not None}


def _imported(target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does; not removed, because modules may import others later
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
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
