"""An attached policy's ``reset`` starts a new episode, for those who need to know: rules that look back, and alarms."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.override import Hook, SamplerOverride, put_on

log = logging.getLogger("keystone")


class ResetOverride(SamplerOverride):
    """On the policy itself."""

    reset = Hook(lambda policy, own, *args, **kwargs: _reset(policy, own, *args, **kwargs))


def _reset(policy: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    engine = vars(policy).get("_keystone")
    if engine is not None:  # else an object that was constructed from an attached policy's class
        engine.reset_history()
    return own(*args, **kwargs)


def watch_reset(engine: Engine) -> None:
    """Override ``reset``, if the policy has one and is attached; also when it is attached again.

    Raises:
        KeystoneError: if it cannot be overridden and the rule depends on it.
    """
    engine.watches_reset = True
    watched = any("reset" in vars(combined) for _, _, combined in engine.overridden)
    if watched or not engine.overridden or not callable(getattr(engine.owner, "reset", None)):
        return
    try:
        put_on(engine.owner, ResetOverride, engine)
    except KeystoneError as error:
        if engine.selector.rule.remembers:
            raise
        log.warning("KeyStone: reset of a %s cannot be watched: %s", type(engine.owner).__name__, error)
