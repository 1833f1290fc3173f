"""The arguments of an overridden method, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from keystone_robotics.errors import KeystoneError


def known_arguments(
    adapter: str,
    method: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    known: Collection[str] | None,
) -> dict[str, Any]:
    """The arguments that a caller gave, without defaults.

    Raises:
        KeystoneError: if one is not among the ``known`` (None: any may be): K wide it would be ignored.

    >>> def sample(context, *, steps=10): ...
    >>> known_arguments("mine", sample, [1], {}, ("context",))
    {'context': 1}
    >>> known_arguments("mine", sample, [1], {"steps": 5}, ("context",))
    Traceback (most recent call last):
    ...
    keystone_robotics.errors.KeystoneError: mine: sample takes steps, which the adapter does not know: the policy's code has
    changed
    """
    given = dict(inspect.signature(method).bind(*args, **kwargs).arguments)
    if known is not None and (unknown := sorted({*given} - {*known})):
        raise KeystoneError(
            f"{adapter}: {method.__name__} takes {', '.join(unknown)}, which the adapter does not know: the policy's code has "
            "changed"
        )
    return given
