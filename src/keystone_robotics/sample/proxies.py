"""Classes that stand in for others, and methods that were replaced on an object."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

#: On a proxy class: the class that it stands in for.
_ORIGINAL = "_keystone_original_class"
_NOTHING = object()


def is_replaced(owner: Any, name: str) -> bool:
    """Whether a method was replaced on the instance: by a compiled function, an inference engine.

    The object's own method does not count, which is how others undo a replacement.
    """
    value = vars(owner).get(name, _NOTHING)
    if value is _NOTHING:
        return False
    if not inspect.ismethod(value) or value.__self__ is not owner:
        return True
    return all(vars(kind).get(name) is not value.__func__ for kind in type(owner).__mro__)


def proxy_class(kind: type, name: str, bases: tuple[type, ...], attributes: Mapping[str, Any]) -> type:
    """A class for objects of ``kind``, from which `original_class` finds back."""
    return type(name, bases, {**attributes, _ORIGINAL: kind})


def original_class(part: Any) -> type:
    """The class that an object had before it got a proxy class, or several.

    >>> class Greeter: ...
    >>> greeter = Greeter()
    >>> greeter.__class__ = proxy_class(Greeter, "LoudGreeter", (Greeter,), {})
    >>> type(greeter).__name__, original_class(greeter).__name__
    ('LoudGreeter', 'Greeter')
    """
    return root_class(type(part))


def root_class(kind: type) -> type:
    """The class that a proxy class stands in for, in the end; any other class itself."""
    while _ORIGINAL in vars(kind):
        kind = vars(kind)[_ORIGINAL]
    return kind
