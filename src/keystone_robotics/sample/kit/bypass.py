"""What a fast path leaves out of a network's own code, and whether somebody put something of his own there.

A fast path calls the small parts of a network (projections, feed-forward networks, most norms), and writes out itself what the
larger ones around them do: layers, attention, the network as a whole. Hooks and replaced methods (an engine, a compiled
function) on the former are called as ever. On the latter they would be left out without a word: such rounds are drawn on the
plain path, which calls them. Compiled code has in it what was on any part when it was compiled, and does not see what comes
later: rounds are then drawn uncompiled, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules import module as of_all_modules

from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.proxies import is_replaced

log = logging.getLogger("keystone")

#: Where a module keeps its hooks. Guidance differentiates, so those on gradients count too.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Part(NamedTuple):
    """A module whose code is left out: its attributes, and where it is found, which the network itself is not."""

    attributes: dict[str, Any]
    siblings: dict[str, Any]
    name: str
    module: nn.Module | None


@dataclass(frozen=True, eq=False)
class Bypass:
    """What one kind of fast path leaves out: a network, and all modules in it but those that it calls.

    Attributes:
        called: names, in the modules that hold them, of the modules that it calls (``"0"``, or ``"to_out.0"`` if only in a
            holder of that name); what is inside them is theirs.
        apart: names of those that have no part in denoising.
        methods: of the modules left out, those that the network's own code would run.

    >>> block = nn.ModuleDict({"norm": nn.LayerNorm(2), "linear": nn.Linear(2, 2)})
    >>> bypass, seen = Bypass(frozenset({"linear"})), {}
    >>> hook = block["linear"].register_forward_hook(print)
    >>> bypass.obstacle(block, seen)
    ''
    >>> hook = block["norm"].register_forward_hook(print)
    >>> bypass.obstacle(block, seen)
    'there is a hook on norm (LayerNorm)'
    >>> hook.remove()
    >>> bypass.obstacle(block, seen)
    ''
    """

    called: frozenset[str]
    apart: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset({"forward"})

    @cached_property
    def compiled(self) -> Bypass:
        """What the same fast path leaves out once it is compiled: whatever comes later, on any part."""
        return Bypass(frozenset(), self.apart, self.methods)

    def obstacle(self, network: nn.Module, seen: dict[Any, Any]) -> str:
        """What stands on the modules left out that the network's own code would run; empty if nothing does.

        Args:
            network: that would be passed by.
            seen: where to remember the modules left out, until one is exchanged or something is on it: this is asked in every
                round. To be thrown away with the network, and not to be copied.
        """
        if any(getattr(of_all_modules, f"_global{kind}") for kind in _HOOKS):
            return "there is a hook on all modules"
        known, parts = seen.get(self, (None, None))
        if known is network and self._clear(parts):
            return ""
        walked = list(self._walk(network))
        found = next(
            filter(None, (self._found(network if part.module is None else part.module, path) for path, part in walked)),
            "",
        )
        seen[self] = network, None if found else [part for _, part in walked]
        return found

    def _clear(self, parts: list[_Part] | None) -> bool:
        """Whether these are the modules left out, still, and nothing is on them; in doubt, they are looked at more closely."""
        if parts is None:
            return False
        watched = self.methods | {"_compiled_call_impl"}
        for attributes, siblings, name, module in parts:
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

    def _walk(self, network: nn.Module) -> Iterator[tuple[str, _Part]]:
        """The modules left out, with their names in the network."""
        pending = [("", _Part(vars(network), {}, "", None))]
        while pending:
            path, part = pending.pop()
            yield path, part
            children = part.attributes["_modules"]
            for name, child in children.items():
                if child is not None and not {name, f"{part.name}.{name}"} & (self.called | self.apart):
                    pending.append((f"{path}.{name}".lstrip("."), _Part(vars(child), children, name, child)))

    def _found(self, module: nn.Module, path: str) -> str:
        where = f"{path or 'the network'} ({type(module).__name__})"
        if any(vars(module)[kind] for kind in _HOOKS):
            return f"there is a hook on {where}"
        for method in sorted(self.methods):
            if is_replaced(module, method):
                return f"{method} of {where} was replaced"
        return f"{where} was compiled" if getattr(module, "_compiled_call_impl", None) else ""


def may_bypass(engine: Engine, bypass: Bypass, network: Any) -> bool:
    """Whether the fast path is wanted and leaves nothing out that somebody put there. Says so when that changes."""
    if engine.untouched or not (engine.paths.fast or engine.compile):
        return False
    obstacle = (bypass.compiled if engine.compile else bypass).obstacle(network, engine.bypassed)
    if obstacle != engine.paths.obstacle:
        engine.paths.obstacle = obstacle
        if obstacle:
            log.warning(
                "KeyStone: while %s, which the fast path would pass by, candidates are drawn on the plain one%s",
                obstacle,
                ", uncompiled" if engine.compile else "",
            )
        else:
            log.info(
                "KeyStone: nothing is on the network any more that the fast path would pass by: it may be used again"
            )
    return not obstacle
