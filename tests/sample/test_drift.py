"""LeRobot's code changes under an adapter: every method it calls or overrides takes one argument more, and a round says so."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics import KeystoneError
from keystone_robotics.sample.families import ADAPTERS
from tiny import POLICIES

NAMES = [name for name, adapter in ADAPTERS.items() if not adapter.refusal and adapter.project == "LeRobot"]


def methods(policy: torch.nn.Module) -> Iterator[tuple[type, str]]:
    """The methods of LeRobot's classes in a policy."""
    kinds = {kind for module in policy.modules() for kind in type(module).__mro__ if "lerobot" in kind.__module__}
    for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
        yield from (
            (kind, name) for name, value in vars(kind).items() if inspect.isfunction(value) and name[:2] != "__"
        )


def called_from_keystone(depth: int = 2) -> bool:
    return str(sys._getframe(depth).f_globals.get("__name__")).startswith("keystone_robotics.sample.families")


def wrapped(own: Callable[..., Any], seen: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        if called_from_keystone():
            seen()
        return own(*args, **kwargs)

    return call


def missing_argument() -> None:
    raise TypeError("missing 1 required positional argument: 'drifted'")


@pytest.mark.parametrize("name", NAMES)
def test_a_method_that_takes_one_argument_more_is_said_in_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, policy = POLICIES[name], POLICIES[name].build().requires_grad_(False)
    predict = functools.partial(recipe.predict, policy, recipe.batch())

    def run(fast: bool) -> None:
        policy.reset()
        handle = keystone.attach(policy, k=2, fast=fast)
        try:
            assert predict().isfinite().all()
        finally:
            keystone.detach(policy)
            del handle

    used: set[tuple[type, str]] = set()
    with monkeypatch.context() as patch:
        for kind, method in methods(policy):
            patch.setattr(kind, method, wrapped(vars(kind)[method], functools.partial(used.add, (kind, method))))
        for fast in (False, True):
            run(fast)
    assert used or name == "groot", "the adapter calls no method of LeRobot's"  # GR00T's calls modules only
    for kind, method in sorted(used, key=str):
        with monkeypatch.context() as patch:
            patch.setattr(kind, method, wrapped(vars(kind)[method], missing_argument))
            assert_in_words(functools.partial(run, fast=False), "missing 1 required positional argument")


def assert_in_words(run: Callable[[], None], cause: str) -> None:
    """It works, or is refused in one line."""
    problem = ""
    try:
        run()
    except KeystoneError as error:
        problem = str(error)
    assert "\n" not in problem
    assert not problem or ("does not fit the code" in problem and cause in problem) or "self-check failed" in problem


@pytest.mark.parametrize("name", NAMES)
def test_an_overridden_method_that_takes_one_argument_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is passed on, or refused in words."""
    recipe, policy = POLICIES[name], POLICIES[name].build().requires_grad_(False)
    adapter = ADAPTERS[name]
    for module, override in adapter.overrides(policy):
        for method in [key for key, value in vars(override).items() if inspect.isfunction(value) and key[0] != "_"]:
            own = getattr(type(module), method, None)
            if own is None:
                continue

            def drifted(self: Any, *args: Any, own: Any = own, drifted: int, **kwargs: Any) -> Any:
                return own(self, *args, **kwargs)

            with monkeypatch.context() as patch:
                patch.setattr(type(module), method, drifted)
                keystone.attach(policy, k=2)
                attached = getattr(type(module), method)
                # The policy's own caller, which passes it.
                patch.setattr(type(module), method, functools.partialmethod(attached, drifted=1), raising=False)
                policy.reset()
                try:
                    assert_in_words(lambda: recipe.predict(policy, recipe.batch()), "")
                finally:
                    delattr(type(module), method)
                    setattr(type(module), method, attached)
                    keystone.detach(policy)
