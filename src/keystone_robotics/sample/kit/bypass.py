"""Detects hooks and replaced methods on the modules whose ``forward`` a fast path does not call.

A fast path calls the leaf modules of a network (projections, feed-forward networks, most norms) and reimplements the modules
around them: layers, attention, the network itself. Hooks and replaced methods (an inference engine, a compiled function) on
called modules take effect. On bypassed modules they would be skipped silently, so such rounds are drawn on the plain path.
Compiled code ignores hooks that are registered after compilation, on any module: such rounds are also drawn uncompiled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules import module as global_hooks

from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.proxies import is_replaced

log = logging.getLogger("keystone")

#: Attributes with the hooks of a module. Guidance backpropagates, so backward hooks count too.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _BypassedModule(NamedTuple):
    """A module that is not called: its attributes, and its entry in the parent's ``_modules`` (none for the network)."""

    attributes: dict[str, Any]
    siblings: dict[str, Any]
    name: str
    module: nn.Module | None


@dataclass(frozen=True, eq=False)
class Bypass:
    """The modules that a fast path bypasses: the network and everything in it except the modules that it calls.

    Attributes:
        called_modules: attribute names of the modules that the fast path calls, with their submodules; ``"to_out.0"`` matches
            ``"0"`` only in a parent named ``"to_out"``.
        unused_modules: attribute names of modules that do not take part in denoising.
        methods: methods of the bypassed modules that the network's own code would call.

    >>> block = nn.ModuleDict({"norm": nn.LayerNorm(2), "linear": nn.Linear(2, 2)})
    >>> bypass, cache = Bypass(frozenset({"linear"})), {}
    >>> hook = block["linear"].register_forward_hook(print)
    >>> bypass.obstacle(block, cache)
    ''
    >>> hook = block["norm"].register_forward_hook(print)
    >>> bypass.obstacle(block, cache)
    'there is a hook on norm (LayerNorm)'
    >>> hook.remove()
    >>> bypass.obstacle(block, cache)
    ''
    """

    called_modules: frozenset[str]
    unused_modules: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset({"forward"})

    @cached_property
    def compiled(self) -> Bypass:
        """The same fast path, compiled: later hooks are ignored on every module."""
        return Bypass(frozenset(), self.unused_modules, self.methods)

    def obstacle(self, network: nn.Module, cache: dict[Any, Any]) -> str:
        """The first hook or replaced method that would be skipped, as text; empty if there is none.

        Args:
            network: the bypassed network.
            cache: stores the bypassed modules between rounds, until one is replaced or hooked. Must not outlive the network,
                nor be copied.
        """
        if any(getattr(global_hooks, f"_global{kind}") for kind in _HOOKS):
            return "there is a hook on all modules"
        cached_network, bypassed = cache.get(self, (None, None))
        if cached_network is network and self._is_unchanged(bypassed):
            return ""
        walked = list(self._walk(network))
        descriptions = (self._describe(network if one.module is None else one.module, path) for path, one in walked)
        obstacle = next(filter(None, descriptions), "")
        cache[self] = network, None if obstacle else [one for _, one in walked]
        return obstacle

    def _is_unchanged(self, bypassed: list[_BypassedModule] | None) -> bool:
        """Fast check, which may report a change where there is none: same modules, no hooks, nothing replaced."""
        if bypassed is None:
            return False
        watched = self.methods | {"_compiled_call_impl"}
        for attributes, siblings, name, module in bypassed:
            if (
                attributes["_forward_hooks"]
                or attributes["_forward_pre_hooks"]
                or attributes["_backward_hooks"]
                or attributes["_backward_pre_hooks"]
                or siblings.get(name) is not module
                or not attributes.keys().isdisjoint(watched)
            ):
                return False
        return True

    def _walk(self, network: nn.Module) -> Iterator[tuple[str, _BypassedModule]]:
        """The bypassed modules with their paths in the network."""
        excluded = self.called_modules | self.unused_modules
        pending = [("", _BypassedModule(vars(network), {}, "", None))]
        while pending:
            path, parent = pending.pop()
            yield path, parent
            children = parent.attributes["_modules"]
            for name, child in children.items():
                if child is not None and not {name, f"{parent.name}.{name}"} & excluded:
                    pending.append((f"{path}.{name}".lstrip("."), _BypassedModule(vars(child), children, name, child)))

    def _describe(self, module: nn.Module, path: str) -> str:
        where = f"{path or 'the network'} ({type(module).__name__})"
        if any(vars(module)[kind] for kind in _HOOKS):
            return f"there is a hook on {where}"
        for method in sorted(self.methods):
            if is_replaced(module, method):
                return f"{method} of {where} was replaced"
        return f"{where} was compiled" if getattr(module, "_compiled_call_impl", None) else ""


def may_bypass(engine: Engine, bypass: Bypass, network: Any) -> bool:
    """Whether the fast path is enabled and would skip no hook or replaced method. Logs when the answer changes."""
    if engine.untouched or not (engine.paths.fast or engine.compile):
        return False
    obstacle = (bypass.compiled if engine.compile else bypass).obstacle(network, engine.bypassed)
    if obstacle != engine.paths.obstacle:
        engine.paths.obstacle = obstacle
        if obstacle:
            log.warning(
                "KeyStone: %s, which the fast path would bypass: candidates are drawn on the plain path%s",
                obstacle,
                ", uncompiled" if engine.compile else "",
            )
        else:
            log.info("KeyStone: no hook or replaced method is bypassed any more: the fast path is enabled again")
    return not obstacle
