"""Finds the policy in a model server."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import torch

from keystone_robotics.attachment import attach
from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle
from keystone_robotics.integrations.vla_eval.options import ServeOptions
from keystone_robotics.sample.adapter import find_adapter

#: Types and packages whose objects are not searched for a policy.
_PLAIN = (str, bytes, int, float, complex, bool, type(None), list, tuple, dict, set, frozenset, type)
_IGNORED_PACKAGES = {
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
    """No supported policy was found in a server; it may not be loaded yet."""


def attach_to_server(server: Any, options: ServeOptions) -> Handle:
    """Attach to the policy that a server has loaded. Distances use the steps that the server executes, its ``chunk_size``.

    Raises:
        NoPolicy: if there is no supported policy; the message lists what was searched.
        KeystoneError: if there is one that cannot be attached to.
    """
    policy = server if options.site else _policy_of(server)
    # A server that calls select_action uses the policy's queue; the policy's configuration has the executed steps.
    executed = None if getattr(server, "_use_select_action", False) else getattr(server, "chunk_size", None)
    span = options.spec.execute_range
    if span is None:
        execute: Any = options.spec.execute or executed
    else:  # as many as the candidates agree on, of those that the server executes
        execute = str(span if executed is None or span.most is not None else dataclasses.replace(span, most=executed))
    return attach(policy, options.spec, site=options.site, execute=execute)


def holds_a_model(server: Any) -> bool:
    """Whether a server holds a module, or an object that holds one."""
    return any(
        isinstance(value, torch.nn.Module)
        or any(isinstance(one, torch.nn.Module) for one in _attributes(value).values())
        for value in _attributes(server).values()
    )


def _policy_of(server: Any) -> Any:
    """The server if `find_adapter` accepts it, else the first of its attributes that it accepts."""
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
        f"{type(server).__name__} holds no supported policy. Looked at: {looked_at or 'nothing'}{inner}. "
        "Name the method that draws the noise and returns (B, T, D) chunks, as a path from the server: "
        "site: _model.sample_actions"
    )


def _attributes(thing: Any) -> dict[str, Any]:
    """Attributes of an object that may be, or hold, a policy."""
    own = getattr(thing, "__dict__", {})
    return {
        name: value
        for name, value in {**own, **own.get("_modules", {})}.items()
        if not isinstance(value, _PLAIN)
        and not name.startswith("_keystone")
        and type(value).__module__.partition(".")[0] not in _IGNORED_PACKAGES
    }
