"""Restrictions of servers that serve many episodes at once."""

from __future__ import annotations

from keystone_robotics.errors import KeystoneError
from keystone_robotics.select.rules.base import Rule


def refuse_memory(rule: Rule) -> None:
    """Refuse rules that use the previous chunk: in a server, it may belong to another episode.

    >>> from keystone_robotics.select.rules import bind
    >>> refuse_memory(bind("medoid", {}))
    >>> refuse_memory(bind("coherent", {}))
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: rule coherent looks back at the previous chunk of its episode, ...
    """
    if rule.remembers:
        raise KeystoneError(
            f"rule {rule.name} looks back at the previous chunk of its episode, and a server serves many episodes at once: "
            "choose another rule"
        )
