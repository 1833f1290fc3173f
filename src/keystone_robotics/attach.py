"""`keystone.attach`: a policy that is still the same policy, now choosing among K candidates."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Literal

from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Chosen, Handle
from keystone_robotics.sample.adapter import Seam, find_adapter, find_session, swap_in, swap_out
from keystone_robotics.sample.compiler import check_compiler
from keystone_robotics.sample.hook import Hook
from keystone_robotics.sample.paths import Paths
from keystone_robotics.sample.session import Session
from keystone_robotics.sample.site import SiteAdapter
from keystone_robotics.select import ActionSpace
from keystone_robotics.select.engine import check_seed, warm_up
from keystone_robotics.select.metrics import check_metric
from keystone_robotics.select.rules import bind
from keystone_robotics.select.rules.checks import number, whole

log = logging.getLogger("keystone")

#: Candidates in the self-check of the first round with ``k="auto"``, before K is known.
UNTIL_TUNED = 4

__all__ = ["Chosen", "Handle", "attach", "attached", "detach"]


def _reset(policy: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    policy._keystone.choose.forget()
    return own(*args, **kwargs)


class ResetSeam(Seam):
    """On the policy itself, where a rule remembers the previous chunk: a new episode has none."""

    reset = Hook(_reset)


def attach(
    policy: Any,
    k: int | Literal["auto"] = 16,
    rule: Any = "keystone",
    temperature: float = 1.0,
    seed: int | None = None,
    *,
    space: ActionSpace | None = None,
    execute: int | None = None,
    metric: str = "l2",
    site: str | None = None,
    keep: int = 0,
    check: bool | Literal["all"] = True,
    fast: bool = True,
    compile: bool = False,
    profiles: str | os.PathLike[str] | None = None,
    **params: Any,
) -> Handle:
    """Let a policy draw K chunks a round and execute one of them. In place; everything else about it stays as it was.

    The context is encoded once per observation. With ``k=1``, no seed and temperature 1 the policy runs its own code, bit for
    bit. In the first round the candidates are compared with the policy's own single calls under the same noise; if they
    differ (a new version of the framework, say), that round raises and nothing is executed.

    Args:
        policy: a policy, or an object that holds one (a server, a wrapper) or that it holds (its model, its action head).
        k: candidates per round; "auto" takes the largest that costs almost nothing, from a profile of this policy on this
            device that `keystone.profile` stored, or else from one that the first round makes (see docs/profile.md).
        rule: a name in `keystone.RULES` or a function, see `keystone.select`.
        temperature: factor on the initial noise; below 1 the candidates lie closer together.
        seed: makes the noise of all rounds reproducible; None draws from torch's global generator. For a single call:
            ``with handle.seeded(123): policy.select_action(batch)``.
        space: what counts in distances. Where it names no ``dims`` or no ``steps``, the real dimensions and the executed steps
            count, as the policy tells; ``steps=slice(None)`` counts all. Required where chunks are padded and the policy
            cannot tell (GR00T's action head, X-VLA).
        execute: steps of a chunk that are executed before the next round, if not as many as the policy's configuration says;
            only they count in distances, unless ``space`` names others, and rules that look back look past them.
        metric: "l2", "l1" or "cosine".
        site: for a policy without an adapter: the method (``"sample"``, ``"model.sample"``) that draws the noise and returns
            chunks (B, T, D); it is vectorised with ``torch.vmap``, and has one seed per round, not one per row.
        keep: how many of the last rounds `Handle.replay` can draw again (keeps their inputs in memory).
        check: make the self-check in the first round; "all" compares every candidate, not only three.
        fast: draw candidates on the adapter's fast path, if it has one and the self-check finds it exact (so with
            ``check=False`` it is not used); `Handle.path` tells which path is at work. See docs/fast.md.
        compile: compile the denoising step with ``torch.compile``; the first rounds take a minute or so.
        profiles: for "auto": the folder of stored profiles; default ``KEYSTONE_PROFILES``, or one in the user's cache.
        **params: of the rule.

    Raises:
        KeystoneError: if the policy cannot be attached to; the message says why.

    >>> import torch, keystone_robotics as keystone
    >>> class Policy(torch.nn.Module):
    ...     def act(self, observation):
    ...         return observation[:, None] + torch.randn(len(observation), 8, 2)
    >>> policy = Policy()
    >>> handle = keystone.attach(policy, k=16, site="act", seed=0)
    >>> policy.act(torch.zeros(1, 2)).shape, handle.stats["rounds"]
    (torch.Size([1, 8, 2]), 1)
    >>> keystone.detach(policy)
    >>> type(policy).__name__
    'Policy'
    """
    automatic = isinstance(k, str) and k == "auto"
    if isinstance(k, str) and not automatic:
        raise ValueError(f'k={k!r}: expected a whole number, or "auto"')
    candidates: Any = UNTIL_TUNED if automatic else k
    whole("k", candidates)
    whole("keep", keep, least=0)
    number("temperature", temperature)
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature={temperature!r}: expected a finite number, 0 or more")
    if seed is not None:
        seed = check_seed(seed)
    if execute is not None:
        whole("execute", execute)
    if check not in (True, False, "all"):
        raise ValueError(f"check={check!r}: expected True, False or 'all'")
    for name, flag in (("fast", fast), ("compile", compile)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name}={flag!r}: expected True or False")
    if space is not None and not isinstance(space, ActionSpace):
        raise TypeError(f"space={space!r}: expected a keystone.ActionSpace")
    if site is not None and (not isinstance(site, str) or not site):
        raise TypeError(f"site={site!r}: expected the name of a method")
    check_metric(metric)
    bound = bind(rule, params)
    if find_session(policy) is not None:
        raise KeystoneError(
            f"KeyStone is attached to this {type(policy).__name__} already: keystone.detach(policy) first"
        )
    adapter, owner = (SiteAdapter(policy, site), policy) if site else find_adapter(policy)
    refusal = adapter.refuse(owner)
    if refusal:
        raise KeystoneError(f"KeyStone cannot be attached to {adapter.name}: {refusal}")
    encoders, seams = tuple(adapter.encoders(owner)), list(adapter.seams(owner))
    for encoder, name in encoders:
        if not callable(getattr(encoder, name, None)):
            raise KeystoneError(
                f"adapter {adapter.name}: {type(encoder).__name__} has no method {name!r} to encode with"
            )
    if compile:
        check_compiler(adapter, owner)
    handle = Handle(adapter, adapter.config(owner), bound, metric, space, execute)
    session = Session(
        k=candidates, temperature=float(temperature), seed=seed, choose=handle, encoders=encoders,
        sampling=tuple(module for module, _ in seams), encoding=tuple(adapter.encoding(owner)),
        checked=not check, thorough=check == "all", keep=keep, owner=owner,
        paths=Paths(fast and bool(check), last="undecided" if check else "plain"), compile=compile,
    )  # fmt: skip
    handle.session = session
    encoding: list[tuple[Any, type[Seam]]] = []
    if automatic:
        from keystone_robotics.profiling.auto import FirstRound, noting_seam

        session.tuner = FirstRound(handle, profiles)
        encoding = [(encoder, noting_seam(name)) for encoder, name in encoders]
    resets: list[tuple[Any, type[Seam]]] = [(owner, ResetSeam)] if bound.remembers and hasattr(owner, "reset") else []
    handle.overrides = [*seams, *encoding, *resets]
    reattach(handle)
    warm_up()
    path = "" if check else "; plain path, since without the self-check no other can prove to be exact"
    shown = "auto" if automatic else k
    log.info(
        "KeyStone on: K=%s, rule %s, adapter %s, shared: %s%s", shown, bound.name, adapter.name, adapter.shares, path
    )
    return handle


def reattach(handle: Handle) -> None:
    """Attach a detached handle to its policy again, with its settings and what its self-check found.

    For callers that alternate between handles of one policy which does not change meanwhile.
    """
    session = handle.session
    if find_session(session.owner) is not None:
        raise KeystoneError(
            f"KeyStone is attached to this {type(session.owner).__name__} already: keystone.detach(policy) first"
        )
    try:
        for module, seam in handle.overrides:
            swap_in(module, seam, session)
    except Exception:
        swap_out(session)
        raise
    vars(session.owner)["_keystone"] = session


def detach(policy: Any) -> None:
    """Give an attached policy its own classes back; no attribute is left behind. Does nothing if it is not attached.

    >>> keystone_was_never_attached = object()
    >>> detach(keystone_was_never_attached)
    """
    session = find_session(policy)
    if session is not None:
        swap_out(session)


def attached(policy: Any) -> Handle | None:
    """The handle of an attached policy, for example one that a command-line flag attached; None if it is not.

    >>> attached(object()) is None
    True
    """
    session = find_session(policy)
    return session.choose if session else None  # type: ignore[return-value]
