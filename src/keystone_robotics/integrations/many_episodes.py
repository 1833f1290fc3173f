"""What a server that many clients and episodes talk to cannot do."""

from __future__ import annotations

from keystone_robotics.errors import KeystoneError
from keystone_robotics.select.rules.base import Rule


def refuse_memory(rule: Rule) -> None:
    """Refuse a rule that looks back: the previous round of a server may have been for somebody else.

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
