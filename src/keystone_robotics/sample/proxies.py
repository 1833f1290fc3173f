"""Proxy classes, and methods that were replaced on an instance."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

#: Attribute of a proxy class: the original class.
_ORIGINAL = "_keystone_original_class"
_NOTHING = object()


def is_replaced(owner: Any, name: str) -> bool:
    """Whether a method was replaced on the instance, for example by a compiled function or an inference engine.

    Assigning the object's own bound method does not count: that is how other libraries undo a replacement.
    """
    value = vars(owner).get(name, _NOTHING)
    if value is _NOTHING:
        return False
    if not inspect.ismethod(value) or value.__self__ is not owner:
        return True
    return all(vars(kind).get(name) is not value.__func__ for kind in type(owner).__mro__)


def proxy_class(kind: type, name: str, bases: tuple[type, ...], attributes: Mapping[str, Any]) -> type:
    """A subclass for objects of ``kind``; `original_class` returns ``kind`` for them."""
    return type(name, bases, {**attributes, _ORIGINAL: kind})


def original_class(part: Any) -> type:
    """The class of an object, without proxy classes.

    >>> class Greeter: ...
    >>> greeter = Greeter()
    >>> greeter.__class__ = proxy_class(Greeter, "LoudGreeter", (Greeter,), {})
    >>> type(greeter).__name__, original_class(greeter).__name__
    ('LoudGreeter', 'Greeter')
    """
    return root_class(type(part))


def root_class(kind: type) -> type:
    """The original class behind any number of proxy classes; other classes unchanged."""
    while _ORIGINAL in vars(kind):
        kind = vars(kind)[_ORIGINAL]
    return kind
