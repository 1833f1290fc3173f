"""`keystone.attach`: make a policy select among K candidates, in place."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, Literal

from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle
from keystone_robotics.sample.adapter import Adapter, find_adapter
from keystone_robotics.sample.adaptive import refuse_adaptive_k
from keystone_robotics.sample.compiler import check_compiler
from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.override import find_engine, objects_inside, put_on, take_off, watch_methods
from keystone_robotics.sample.paths import Paths
from keystone_robotics.sample.queues import watch_queue
from keystone_robotics.sample.resets import watch_reset
from keystone_robotics.sample.selector import Selector
from keystone_robotics.sample.site import SiteAdapter
from keystone_robotics.sample.steps import check_steps
from keystone_robotics.select.engine import warm_up
from keystone_robotics.select.rules.checks import whole
from keystone_robotics.spec import Spec

log = logging.getLogger("keystone")

#: Held while classes of modules are exchanged: policies may share modules, and threads policies.
_changing = threading.RLock()

#: Candidates per round with ``k="auto"`` before K is measured.
K_BEFORE_TUNING = 4


def attach(
    policy: Any,
    spec: Spec | str | None = None,
    *,
    site: str | None = None,
    chunk: str | int | None = None,
    shape: tuple[int, int] | None = None,
    keep: int = 0,
    check: bool | Literal["all"] = True,
    profiles: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Handle:
    """Make a policy draw K chunks per round and return one of them. Works in place; the policy keeps its type and interface.

    The context is encoded once per observation. With ``k=1``, no seed and temperature 1 the policy runs its own code, bit for
    bit. In the first round the candidates are compared with the policy's own single calls under the same noise; if they
    differ (for example with a new version of the framework), that round raises and returns no chunk.

    Args:
        policy: a policy, an object that holds one (a server, a wrapper), or its model or action head.
        spec: how candidates are drawn and one is selected: a `keystone.Spec`, its text (``"core-mean:k=16"``), or None for
            the defaults.
        site: for a policy without an adapter: the method (``"sample"``, ``"model.sample"``) that draws the noise and returns
            chunks (B, T, D); it is vectorised with ``torch.vmap``, and has one seed per round, not one per row.
        chunk: with ``site``: the key or the index of the chunks, if the method returns a dict or a tuple.
        shape: with ``site``: (T, D) of a chunk, if the method returns (B, T * D), or one chunk without a batch.
        keep: how many of the last rounds `Handle.replay` can draw again (keeps their inputs in memory).
        check: run the self-check in the first round; "all" compares every candidate instead of three.
        profiles: for "auto": the folder of stored profiles; default ``KEYSTONE_PROFILES``, or one in the user's cache.
        **options: fields of `keystone.Spec` and parameters of the rule; they override ``spec``. Among them:
            k (default 16): candidates per round; "auto" takes the largest K within 5 % of the latency of K = 1, from a stored
            profile of this policy on this device, else measured after the second round (docs/profile.md). "4..16" draws four,
            and the rest where these disagree (docs/adaptive.md).
            steps: denoising steps of each candidate, fewer than the policy's own number to spend latency on candidates instead.
            rule (default "keystone"): a name in `keystone.RULES` or a function, see `keystone.select`.
            temperature (default 1): factor on the initial noise; below 1 the candidates are closer together.
            seed: makes the noise of all rounds reproducible; None draws from torch's global generator. For a single call:
            ``with handle.seeded(123): policy.select_action(batch)``.
            space: dimensions and steps used in distances. Defaults for ``dims`` and ``steps`` are the policy's real dimensions
            and executed steps; ``window="chunk"`` uses all steps. Required if chunks are padded and the policy does not have
            the real dimensions (GR00T's action head, X-VLA).
            execute: steps of a chunk that are executed before the next round; default the policy's configuration. Distances
            use these steps unless ``space`` names others; rules that use the previous chunk compare with the steps after them.
            "auto" executes as many as the candidates agree on, up to that number (docs/adaptive.md).
            metric (default "l2"): "l2", "l1" or "cosine".
            fast (default True): draw on the adapter's fast path, if it has one and the self-check finds it exact (not with
            ``check=False``); `Handle.path` is the path in use. See docs/fast.md.
            compile (default False): compile the denoising step with ``torch.compile``; the first rounds take about a minute.

    Raises:
        KeystoneError: if the policy cannot be attached to; the message gives the reason.

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
    spec = Spec.of(spec, **options)
    automatic = spec.k == "auto"
    k_range = spec.k_range
    candidates = spec.most_k or K_BEFORE_TUNING
    whole("keep", keep, least=0)
    if check not in (True, False, "all"):
        raise ValueError(f"check={check!r}: expected True, False or 'all'")
    if site is not None and (not isinstance(site, str) or not site):
        raise TypeError(f"site={site!r}: expected the name of a method")
    if site is None and (chunk is not None or shape is not None):
        raise TypeError("chunk= and shape= say what the method named by site= returns: give site= too")
    if shape is not None:
        if not isinstance(shape, (tuple, list)) or len(shape) != 2:
            raise TypeError(f"shape={shape!r}: expected (T, D), the steps and the dimensions of a chunk")
        for size in shape:
            whole("shape", size)
    bound = spec.bind()
    _check_free(policy)
    adapter, owner = (SiteAdapter(policy, site, chunk, shape), policy) if site else find_adapter(policy)
    refusal, encoders = _ask(adapter, owner)
    if refusal:
        raise KeystoneError(f"KeyStone cannot be attached to {adapter.name}: {refusal}")
    for part, name in encoders:
        if not callable(getattr(part, name, None)):
            raise KeystoneError(f"adapter {adapter.name}: {type(part).__name__} has no method {name!r} to encode with")
    if spec.steps is not None:
        check_steps(adapter, owner, spec.steps)
    if k_range is not None:
        refuse_adaptive_k(adapter)
    if spec.compile:
        check_compiler(adapter, owner)
    engine = Engine(
        adapter,
        owner,
        Selector(
            adapter, adapter.config(owner), bound, spec.metric, spec.action_space(), spec.most_steps, spec.execute_range
        ),
        candidates,
        k_range,
        k_given=not automatic,
        steps=spec.steps,
        temperature=spec.temperature,
        seed=spec.seed,
        compile=spec.compile,
        check=check,
        keep=keep,
        encoder_names=tuple(name for _, name in encoders),
        paths=Paths(fast=spec.fast and bool(check)),
        path="undecided" if check else "plain",
    )
    handle = Handle(engine)
    reattach(handle)
    if automatic:
        from keystone_robotics.profiling.auto import AutoK

        handle.subscribe(AutoK(handle, profiles))
    warm_up()
    path = "" if check else "; plain path, since the fast path requires the self-check"
    log.info(
        "KeyStone on: K=%s%s, rule %s, adapter %s, shared: %s%s",
        spec.k, "" if spec.steps is None else f", steps={spec.steps}", bound.name, adapter.name, adapter.shared_context, path,
    )  # fmt: skip
    return handle


def _ask(adapter: Adapter, owner: Any) -> tuple[str, Sequence[tuple[Any, str]]]:
    """Why the adapter refuses the policy, or an empty string, and the policy's encoder methods.

    Raises:
        KeystoneError: if the adapter looks for something that this version of the policy's code does not have.
    """
    try:
        if refusal := adapter.refuse(owner):
            return refusal, ()
        adapter.overrides(owner), adapter.step_methods(owner)
        return "", adapter.encoder_methods(owner)
    except (AttributeError, TypeError, KeyError) as error:
        raise KeystoneError(
            f"adapter {adapter.name} does not fit the code of this {type(owner).__name__}: {type(error).__name__}: {error}. "
            f"{adapter.project}'s code has changed since the adapter was tested (docs/policies.md, docs/upstream.md)"
        ) from error


def reattach(handle: Handle) -> None:
    """Attach a detached handle to its policy again, with its settings and the result of its self-check.

    For callers that alternate between handles of one policy; the policy must not change in between.
    """
    engine = handle.engine
    with _changing:
        _check_free(engine.owner)
        try:
            for module, override in engine.adapter.overrides(engine.owner):
                put_on(module, override, engine)
            watch_methods(engine)
            if engine.watches_reset or engine.selector.rule.remembers:
                watch_reset(engine)
            if engine.selector.horizon is not None:
                watch_queue(engine)
        except Exception:
            take_off(engine)
            raise
        vars(engine.owner)["_keystone"] = engine


def refusal(policy: Any) -> str:
    """Why KeyStone cannot be attached to a policy; empty if it can."""
    try:
        adapter, owner = find_adapter(policy)
    except KeystoneError as error:
        return str(error)
    reason = adapter.refuse(owner)
    return f"KeyStone cannot be attached to {adapter.name}: {reason}" if reason else ""


def _check_free(policy: Any) -> None:
    if find_engine(policy) is not None:
        raise KeystoneError(
            f"KeyStone is attached to this {type(policy).__name__} already: keystone.detach(policy) first"
        )


def detach(policy: Any) -> None:
    """Restore the original classes of an attached policy and remove all attributes. Does nothing if it is not attached.

    Waits for rounds in other threads. Called within a round, by a listener, it takes effect when the round is over.

    Raises:
        KeystoneError: if the object is a shallow copy, which shares its modules with the attached policy.

    >>> keystone_was_never_attached = object()
    >>> detach(keystone_was_never_attached)
    """
    engine = find_engine(policy)
    if engine is None:
        return
    if engine.usage.is_inside:
        engine.usage.when_outside(lambda: detach(policy))
        return
    with engine.usage.exclusive(), _changing:
        if find_engine(policy) is not engine:  # another thread was faster
            return
        holder = next(
            part for part in objects_inside(policy) if getattr(part, "__dict__", {}).get("_keystone") is engine
        )
        if all(part is not holder for part in (engine.owner, *(module for module, _, _ in engine.overridden))):
            raise KeystoneError(
                f"this {type(policy).__name__} is a shallow copy of an attached policy, with which it shares its modules: "
                "detach the policy itself (copy.deepcopy copies it whole)"
            )
        take_off(engine)


def attached(policy: Any) -> Handle | None:
    """The handle of an attached policy, for example one attached by a command-line flag; else None.

    >>> attached(object()) is None
    True
    """
    engine = find_engine(policy)
    return Handle(engine) if engine else None
