"""The number of denoising steps of an attached policy: set while KeyStone is attached, restored by `detach`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keystone_robotics.errors import KeystoneError

if TYPE_CHECKING:
    from keystone_robotics.sample.engine import Engine


def set_steps(engine: Engine, steps: int | None) -> None:
    """Denoise in ``steps`` steps from the next round on; None is the policy's own number.

    The number is written where the policy's own code reads it, so that single calls, K-wide sampling and the fast path take
    the same steps. Overrides whose method takes the number as an argument read it from ``engine.steps``.

    Raises:
        KeystoneError: if the policy cannot denoise in that many steps; nothing has changed then.
    """
    adapter, owner = engine.adapter, engine.owner
    if steps is not None and (reason := adapter.refuse_steps(owner, steps)):
        raise KeystoneError(f"steps={steps}: {reason}")
    restore_steps(engine)
    if steps is not None:
        for holder, name in adapter.step_settings(owner):
            engine.own_steps.append((holder, name, getattr(holder, name)))
            setattr(holder, name, steps)
    engine.steps = steps


def restore_steps(engine: Engine) -> None:
    """Give the policy its own number of steps again."""
    for holder, name, own in engine.own_steps:
        setattr(holder, name, own)
    engine.own_steps.clear()
