"""The number of denoising steps of an attached policy: another one during its calls, its own in between."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from keystone_robotics.errors import StepsRefused
from keystone_robotics.sample.proxies import original_class

if TYPE_CHECKING:
    from keystone_robotics.sample.adapter import Adapter

T = TypeVar("T")


def check_steps(adapter: Adapter, policy: Any, steps: int) -> None:
    """Raises `StepsRefused` if the policy cannot denoise in that many steps."""
    if reason := adapter.refuse_steps(policy, steps):
        raise StepsRefused(f"steps={steps}: {reason}")
    if setting := adapter.steps_setting(policy):
        holder, name = setting
        try:
            call_at_steps(contextlib.nullcontext(), setting, steps, lambda: None)
        except (AttributeError, TypeError) as error:  # a frozen dataclass, a property without a setter
            raise StepsRefused(
                f"steps={steps}: {name} of a {type(holder).__name__} cannot be set ({error}); leave steps out"
            ) from error


def default_argument(owner: Any, method: str, argument: str) -> int | None:
    """The default of a method's argument, as the object's own class defines it; None if it has none."""
    known = inspect.signature(getattr(original_class(owner), method)).parameters.get(argument)
    return known.default if known is not None and isinstance(known.default, int) else None


def call_at_steps(
    lock: Any, setting: tuple[Any, str], steps: int, function: Callable[..., T], *args: Any, **kwargs: Any
) -> T:
    """Call a policy's code with another number of denoising steps, written where the code reads it.

    Only during the call: between rounds the policy's configuration is its own, also in a checkpoint that is saved then.

    Args:
        lock: of the policy, reentrant. Calls of other threads wait, since they may want another number.
        setting: the object and the name of its attribute that is the number.
        steps: the number.
        function: called with the other arguments.
    """
    holder, name = setting
    with lock:
        own, inherited = getattr(holder, name), name not in getattr(holder, "__dict__", (name,))
        setattr(holder, name, steps)
        try:
            return function(*args, **kwargs)
        finally:
            if inherited and name in vars(holder):  # from the class
                delattr(holder, name)
            else:
                setattr(holder, name, own)
