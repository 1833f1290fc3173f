"""A seam for a sampler that an object holds as an attribute of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Hook:
    """Stands in front of a method although the object has one in its own attributes: compiled, jitted, or bound beforehand.

    As a class attribute of a seam. Python asks a descriptor that can be assigned to before it asks the object, so the
    object's own sampler stays where it is, untouched, and is back when the seam comes off.

    Args:
        method: called as ``method(object, own, *args, **kwargs)``, ``own`` being the object's own sampler.

    >>> class Model:
    ...     pass
    >>> model = Model()
    >>> model.sample = lambda noise: noise
    >>> model.__class__ = type("Hooked", (Model,), {"sample": Hook(lambda model, own, noise: -own(noise))})
    >>> model.sample(1)
    -1
    >>> model.__class__ = Model
    >>> model.sample(1)
    1
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __set_name__(self, holder: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        if instance is None:
            return self
        own = vars(instance).get(self._name)
        return functools.partial(self._method, instance, self.from_class(instance) if own is None else own)

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = value

    def __delete__(self, instance: Any) -> None:
        if self._name not in vars(instance):
            raise AttributeError(self._name)
        del vars(instance)[self._name]

    def from_class(self, instance: Any) -> Any:
        """The sampler as the object's own class has it: neither compiled nor bound to anything else."""
        kind = type(instance)
        holders = [base for base in kind.__mro__ if self._name in vars(base)]
        place = next(place for place, base in enumerate(holders) if vars(base)[self._name] is self)
        if place + 1 == len(holders):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {self._name!r}")
        return vars(holders[place + 1])[self._name].__get__(instance, kind)
