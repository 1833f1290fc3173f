"""Where in a server the policy is that KeyStone can attach to."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from keystone_robotics.attach import attach
from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle
from keystone_robotics.integrations.vla_eval.options import ServeOptions
from keystone_robotics.sample.adapter import find_adapter

#: Values that are no policy and hold none; and the packages of which nothing is.
_PLAIN = (str, bytes, int, float, complex, bool, type(None), list, tuple, dict, set, frozenset, type)
_PLUMBING = {
    "anyio",
    "asyncio",
    "builtins",
    "functools",
    "logging",
    "numpy",
    "pathlib",
    "threading",
    "weakref",
    "_thread",
}


class NoPolicy(KeystoneError):
    """A server holds no policy that KeyStone knows, perhaps not yet."""


def attach_to_server(server: Any, options: ServeOptions) -> Handle:
    """Attach to what a server has loaded. Of a chunk, the steps count that the server executes, its ``chunk_size``.

    Raises:
        NoPolicy: if nothing fits; the message names everything that was looked at.
        KeystoneError: if there is a policy, and it cannot be attached to.
    """
    policy = server if options.site else _policy_of(server)
    # A server that calls select_action takes actions one by one from the policy's queue: the policy knows how many.
    executed = None if getattr(server, "_use_select_action", False) else getattr(server, "chunk_size", None)
    return attach(policy, options.spec, site=options.site, execute=options.spec.execute or executed)


def holds_a_model(server: Any) -> bool:
    """Whether a server has anything that looks like a loaded model: a module, or an object that has one."""
    return any(
        isinstance(value, torch.nn.Module)
        or any(isinstance(one, torch.nn.Module) for one in _attributes(value).values())
        for value in _attributes(server).values()
    )


def _policy_of(server: Any) -> Any:
    """The server, if `keystone.attach` finds its way from there; else the first of its attributes from which it does."""
    for candidate in (server, *_attributes(server).values()):
        with contextlib.suppress(KeystoneError):
            find_adapter(candidate)
            return candidate
    looked_at = ", ".join(f"{name} ({type(value).__name__})" for name, value in _attributes(server).items())
    inner = "".join(
        f"; {name} has {', '.join(f'{key} ({type(one).__name__})' for key, one in inside.items())}"
        for name, value in _attributes(server).items()
        if (inside := {key: one for key, one in _attributes(value).items() if isinstance(one, torch.nn.Module)})
    )
    raise NoPolicy(
        f"{type(server).__name__} holds no policy that KeyStone knows. Looked at: {looked_at or 'nothing'}{inner}. "
        "Name the method that draws the noise and returns (B, T, D) chunks, seen from the server: site: _model.sample_actions"
    )


def _attributes(thing: Any) -> dict[str, Any]:
    """What an object holds that may be, or hold, a policy."""
    own = getattr(thing, "__dict__", {})
    return {
        name: value
        for name, value in {**own, **own.get("_modules", {})}.items()
        if not isinstance(value, _PLAIN)
        and not name.startswith("_keystone")
        and type(value).__module__.partition(".")[0] not in _PLUMBING
    }
