"""Standing in front of methods for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Method = Callable[..., Any]


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
            attributes[name] = wrap(getattr(owner, name), name)
        yield
    finally:
        for owner, name, was_there, value in reversed(before):
            if was_there:
                vars(owner)[name] = value
            else:
                vars(owner).pop(name, None)
