"""What does not work in a server of many clients and episodes."""

from __future__ import annotations

from keystone_robotics.errors import KeystoneError
from keystone_robotics.select.rules.base import Rule


def refuse_memory(rule: Rule) -> None:
    """Refuse a rule that uses the previous round: in a server, that may be another episode's.

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
