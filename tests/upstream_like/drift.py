"""A policy's code changes under an adapter: every method it calls or overrides takes one argument more, and a round says so."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

import keystone_robotics as keystone
from keystone_robotics import KeystoneError
from keystone_robotics.sample.families import ADAPTERS
from upstream_like import contract

#: Makes one chunk with an attached policy.
Run = Callable[[], Any]

#: Where a module calls its forward, and encoders are counted.
PASSED_THROUGH = ("torch.nn.modules.module", "keystone_robotics.sample.timer", "keystone_robotics.sample.override")


def own_methods(policy: Any, package: str) -> list[tuple[type, str]]:
    """The methods of this package's classes in a policy and in all it holds."""
    kinds = {
        kind for held, _ in contract.traces(policy).values() for kind in held.__mro__ if package in kind.__module__
    }
    return [
        (kind, name)
        for kind in sorted(kinds, key=lambda kind: kind.__qualname__)
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and name[:2] != "__"
    ]


def called_from_keystone() -> bool:
    """By an adapter, directly or as the ``forward`` of a module that it calls."""
    frame: Any = sys._getframe(2)
    while frame.f_globals.get("__name__") in PASSED_THROUGH:
        if frame.f_code.co_name == "_in_words":  # the policy's own call, to see whether it raises too
            return False
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("keystone_robotics.sample.families")


def wrapped(own: Callable[..., Any], seen: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        if called_from_keystone():
            seen()
        return own(*args, **kwargs)

    return call


def missing_argument() -> None:
    raise TypeError("missing 1 required positional argument: 'drifted'")


def assert_called_methods(policy: Any, package: str, predict: Run, **options: Any) -> list[str]:
    """Every method that the adapter calls takes one argument more. Their names."""

    def run(fast: bool) -> None:
        keystone.attach(policy, k=2, fast=fast, **options)
        try:
            assert predict().isfinite().all()
        finally:
            keystone.detach(policy)

    used: set[tuple[type, str]] = set()
    with pytest.MonkeyPatch.context() as patch:
        for kind, method in own_methods(policy, package):
            patch.setattr(kind, method, wrapped(vars(kind)[method], functools.partial(used.add, (kind, method))))
        for fast in (False, True):
            run(fast)
    for kind, method in sorted(used, key=str):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, method, wrapped(vars(kind)[method], missing_argument))
            assert_in_words(functools.partial(run, fast=False), "missing 1 required positional argument")
    return sorted(method for _, method in used)


def assert_overridden_methods(policy: Any, adapter: str, predict: Run, **options: Any) -> None:
    """Every overridden method takes one argument more, which the policy's own caller passes. One candidate is drawn anyway."""
    for module, override in ADAPTERS[adapter].overrides(policy):
        for method in [key for key, value in inspect.getmembers(override, inspect.isfunction) if key[0] != "_"]:
            own = getattr(type(module), method, None)
            if own is None:
                continue

            def drifted(self: Any, *args: Any, own: Any = own, drifted: int, **kwargs: Any) -> Any:
                return own(self, *args, **kwargs)

            signature = inspect.signature(own)
            more = inspect.Parameter("drifted", inspect.Parameter.KEYWORD_ONLY)
            *named, last = signature.parameters.values()
            names = [*named, more, last] if last.kind is inspect.Parameter.VAR_KEYWORD else [*named, last, more]
            drifted.__signature__ = signature.replace(parameters=names)  # type: ignore[attr-defined]
            drifted.__name__ = method
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(module), method, drifted)
                handle = keystone.attach(policy, k=2, **options)
                attached = getattr(type(module), method)
                patch.setattr(type(module), method, functools.partialmethod(attached, drifted=1), raising=False)
                try:
                    assert_in_words(predict, "")
                    handle.k = 1
                    predict()
                finally:
                    delattr(type(module), method)
                    setattr(type(module), method, attached)
                    keystone.detach(policy)


def assert_in_words(run: Run, cause: str) -> None:
    """It works, or is refused in one line."""
    problem = ""
    try:
        run()
    except KeystoneError as error:
        problem = str(error)
    assert "\n" not in problem
    changed = "'s code has changed" in problem or "self-check failed" in problem
    assert not problem or changed or ("does not fit the code" in problem and cause in problem), problem
