"""Standing in front of methods and classes for a while, and telling that from what others put there."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Method = Callable[..., Any]

#: On a method that stands in front of another: what the object itself had in its place before.
_HIDES = "_keystone_hides"
#: On a class that stands in front of another: that class.
_INSTEAD_OF = "_keystone_instead_of"
_NOTHING = object()


@contextlib.contextmanager
def shadowed(methods: Iterable[tuple[Any, str]], wrap: Callable[[Method, str], Method]) -> Iterator[None]:
    """Within this block ``object.name`` is ``wrap(object.name, name)``, for every (object, name); afterwards as it was.

    >>> class Greeter:
    ...     def greet(self):
    ...         return "hello"
    >>> greeter = Greeter()
    >>> with shadowed([(greeter, "greet")], lambda method, name: lambda: method().upper()):
    ...     greeter.greet()
    'HELLO'
    >>> vars(greeter)
    {}
    """
    before: list[tuple[Any, str, bool, Any]] = []
    try:
        for owner, name in methods:
            attributes = vars(owner)
            before.append((owner, name, name in attributes, attributes.get(name)))
            method = wrap(getattr(owner, name), name)
            setattr(method, _HIDES, attributes.get(name, _NOTHING))
            attributes[name] = method
        yield
    finally:
        for owner, name, was_there, value in reversed(before):
            if was_there:
                vars(owner)[name] = value
            else:
                vars(owner).pop(name, None)


def is_replaced(owner: Any, name: str) -> bool:
    """Whether somebody put something of his own in the place of a method, on the object: a compiled function, an engine.

    What `shadowed` puts there does not count, nor the object's own method, which is how others put it back.
    """
    value = vars(owner).get(name, _NOTHING)
    while hasattr(value, _HIDES):
        value = getattr(value, _HIDES)
    own = inspect.ismethod(value) and value.__self__ is owner and value.__func__ is getattr(type(owner), name, None)
    return not own and value is not _NOTHING


def class_instead(kind: type, name: str, bases: tuple[type, ...], attributes: Mapping[str, Any]) -> type:
    """A class for objects of ``kind``, by which `own_class` still knows what they are."""
    return type(name, bases, {**attributes, _INSTEAD_OF: kind})


def own_class(part: Any) -> type:
    """The class that an object had before `class_instead` gave it another, or several, one in front of the other.

    >>> class Greeter: ...
    >>> greeter = Greeter()
    >>> greeter.__class__ = class_instead(Greeter, "LoudGreeter", (Greeter,), {})
    >>> type(greeter).__name__, own_class(greeter).__name__
    ('LoudGreeter', 'Greeter')
    """
    kind = type(part)
    while _INSTEAD_OF in vars(kind):
        kind = vars(kind)[_INSTEAD_OF]
    return kind
