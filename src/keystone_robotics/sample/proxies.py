"""Proxy classes, and methods that were replaced on an instance."""

from __future__ import annotations

import copy
import copyreg
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
    """A subclass for objects of ``kind``; `original_class` returns ``kind`` for them. Pickled and shallow copies are of
    ``kind`` itself; a deep copy is of the proxy class.
    """
    copying = {"__reduce_ex__": _reduce, "__copy__": _plain_copy, "__deepcopy__": _deepcopy}
    return type(name, bases, {**copying, **attributes, _ORIGINAL: kind})


def _plain_copy(self: Any) -> Any:
    """A shallow copy without KeyStone."""
    twin: Any = object.__new__(original_class(self))
    vars(twin).update({name: value for name, value in vars(self).items() if name != "_keystone"})
    return twin


def _reduce(self: Any, protocol: Any) -> Any:
    engine = vars(self).get("_keystone")
    if engine is not None:
        engine.__reduce__()  # raises if the policy cannot be pickled while attached
    reduced = _plain_copy(self).__reduce_ex__(protocol)
    if reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
        # pickle would compare the class in there with that of the object; this does the same without comparing.
        return copyreg._reconstructor, (*reduced[1], object, None), *reduced[2:]  # type: ignore[attr-defined]
    return reduced


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    own = getattr(original_class(self), "__deepcopy__", None)
    if own is not None:
        return own(self, memo)
    # What `copy.deepcopy` does for a class without methods of its own for that.
    reduced: Any = original_class(self).__reduce_ex__
    return copy._reconstruct(self, memo, *reduced(self, 4))  # type: ignore[attr-defined]


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
