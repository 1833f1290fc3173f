"""The adaptive horizon in LeRobot's policies: the queue of ``select_action`` is cut where the candidates part."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.override import Hook, SamplerOverride, put_on

log = logging.getLogger("keystone")


class QueueOverride(SamplerOverride):
    """On the policy itself."""

    select_action = Hook(lambda policy, own, *args, **kwargs: _select_action(policy, own, *args, **kwargs))


def _select_action(policy: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    engine = vars(policy).get("_keystone")
    if engine is None or engine.selector.horizon is None:
        return own(*args, **kwargs)
    before = engine.last
    action = own(*args, **kwargs)
    selection = engine.last
    if selection is not before and selection.agreed_steps is not None:
        # One step was taken from the queue. Its entries are steps of the whole batch, so that the first row to part decides.
        left = int(selection.agreed_steps.min()) - 1
        for queue in action_queues(policy):
            while len(queue) > left:
                queue.pop()
    return action


def action_queues(policy: Any) -> list[deque[Any]]:
    """The queues from which a LeRobot policy's ``select_action`` may take steps; some have two, and use one."""
    named = getattr(policy, "_queues", None)
    found = (getattr(policy, "_action_queue", None), named.get("action") if isinstance(named, dict) else None)
    return [queue for queue in found if isinstance(queue, deque)]


def watch_queue(engine: Engine) -> None:
    """Override ``select_action``, if the policy has one and is attached; also when it is attached again."""
    owner = engine.owner
    watched = any("select_action" in vars(combined) for _, _, combined in engine.overridden)
    if watched or not engine.overridden or not callable(getattr(owner, "select_action", None)):
        return
    problem = "" if action_queues(owner) else "it has no action queue"
    try:
        put_on(owner, QueueOverride, engine)
    except KeystoneError as error:
        problem = str(error)
    if problem:
        log.warning(
            "KeyStone: select_action of a %s executes all steps, whatever the candidates agree on: %s",
            type(owner).__name__, problem,
        )  # fmt: skip
