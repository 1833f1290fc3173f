"""How an attached policy selects one of its candidates: rule, metric, and the action space of distances."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.usage import Call
from keystone_robotics.select import ActionSpace, Scored, Selection, select
from keystone_robotics.select.agreement import AdaptiveRange, agreed_steps, step_dispersion
from keystone_robotics.select.rules.base import Rule

log = logging.getLogger("keystone")


@dataclass
class Selector:
    """Selects one candidate per row. Settings may change between rounds.

    Attributes:
        adapter: provides the real dimensions and executed steps of the policy's chunks.
        config: passed to `Adapter.window`.
        rule: the rule with its parameters.
        metric: "l2", "l1" or "cosine".
        space: dimensions and steps used in distances. Defaults for ``dims`` and ``steps`` come from the policy: its real
            dimensions and executed steps.
        execute: steps of a chunk that the caller executes, at most; None for the policy's configuration.
        horizon: execute only the steps that the candidates agree on; None executes as many in every round.
        history: (B, T, D) the previous chunks, for rules that use them.
    """

    adapter: Adapter
    config: Any
    rule: Rule
    metric: str = "l2"
    space: ActionSpace | None = None
    execute: int | None = None
    horizon: AdaptiveRange | None = None
    history: Tensor | None = field(default=None, repr=False)
    _completed: dict[Any, tuple[ActionSpace | None, ActionSpace]] = field(default_factory=dict, repr=False)
    _windows: dict[tuple[Window, int], Window] = field(default_factory=dict, repr=False)
    _warned: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.adapter.padding_reason:
            self._check_window(self._window())

    def select(self, candidates: Tensor, delay: int = 0, call: Call | None = None) -> Selection:
        """One of the K candidates (B, K, T, D) of each row, which a call of the policy's sampling method asks for."""
        if self.execute is not None and self.execute > candidates.shape[2]:
            raise KeystoneError(f"execute={self.execute}: the policy's chunks have {candidates.shape[2]} steps")
        rule, space = self._rule(candidates, call), self.space_for(candidates, delay)
        # A constant seed: with the round's, the selection of a row would depend on the other rows.
        selection = select(candidates, rule, space, seed=0, metric=self.metric)
        if self.horizon is None:
            return selection
        steps = self._executed(candidates, delay)
        dispersions = step_dispersion(candidates, selection, space, self.metric, steps)
        return selection._replace(agreed_steps=agreed_steps(dispersions, selection, self.horizon))

    def _executed(self, candidates: Tensor, delay: int) -> range:
        """The steps of a chunk that may be executed; all if that is unknown."""
        length, window = candidates.shape[2], self.window(delay)
        if window is None:
            return range(length)
        start = min(window.start, length - 1)
        return range(start, min(start + window.steps, length))

    def window(self, delay: int = 0) -> Window | None:
        """Real dimensions and executed steps of a round whose first ``delay`` steps are fixed; None if unknown."""
        window = self._window()
        if window is None:
            return None
        known = self._windows.get((window, delay))
        if known is None:
            known = replace(window, start=window.start + delay, relative=self.adapter.relative(self.config))
            self._windows[window, delay] = known
        return known

    def remember(self, selection: Selection) -> None:
        """Store the selected chunk for rules that use the previous one."""
        if self.rule.remembers:
            self.history = selection.chunk

    def reset_history(self) -> None:
        """Forget the previous chunk, at the start of an episode."""
        self.history = None

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows of the previous chunk, after other episodes of the batch have ended."""
        if self.history is not None:
            self.history = self.history[list(rows)]

    def _window(self) -> Window | None:
        """Real dimensions and executed steps, from the policy and the caller."""
        window = self.adapter.window(self.config)
        if self.execute is None:
            return window
        return Window(None, 0, self.execute) if window is None else replace(window, steps=self.execute)

    def _check_window(self, window: Window | None) -> None:
        """Padding would dominate distances: raise if it is unknown and the caller did not give it."""
        known = {"dims": window is not None and window.dims is not None, "steps": window is not None}
        missing = [name for name in known if not known[name] and getattr(self.space, name, None) is None]
        if missing and self.adapter.padding_reason:
            raise KeystoneError(
                f"{self.adapter.name}: {self.adapter.padding_reason}. Missing: {' and '.join(missing)}. Give them: "
                "keystone.attach(policy, space=keystone.ActionSpace(dims=7), execute=8), dims being the robot's action "
                "dimensions and execute the steps that are executed before the next observation"
            )

    def space_for(self, candidates: Tensor, delay: int = 0) -> ActionSpace | None:
        """What counts in distances: the caller's space, with defaults for the real dimensions and executed steps."""
        given = self.space
        if given is not None and given.dims is not None and given.steps is not None:
            return given
        window = self._window()
        self._check_window(window)
        if window is None:
            return given
        steps, dims = candidates.shape[2:]
        key = (window, delay, steps, dims)
        known = self._completed.get(key)
        if known is not None and known[0] is given:
            return known[1]
        start = min(window.start + delay, steps - 1)
        space = ActionSpace() if given is None else given
        completed = replace(
            space,
            dims=min(window.dims or dims, dims) if space.dims is None else space.dims,
            steps=range(start, min(start + window.steps, steps)) if space.steps is None else space.steps,
        )
        self._completed[key] = given, completed
        return completed

    def _rule(self, candidates: Tensor, call: Call | None) -> Rule:
        """The rule, with scores, or with the rest of the previous chunk, if it uses them."""
        if isinstance(self.rule, Scored):
            with torch.no_grad():
                return self.rule.of(_arguments(call), candidates.detach())
        previous = self.history
        if not self.rule.remembers or previous is None or len(previous) != len(candidates):
            return self.rule
        window = self._window()
        ahead = None if window is None else previous[:, window.steps :]
        if ahead is None or not ahead.shape[1]:
            self._warn_once(
                "the number of executed steps is unknown (give execute=…)"
                if ahead is None
                else "every chunk is executed to its end"
            )
            return self.rule
        return replace(self.rule, previous=ahead)  # type: ignore[call-arg]

    def _warn_once(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("KeyStone: %s, so rule %s cannot use the previous chunk", reason, self.rule.name)


def _arguments(call: Call | None) -> dict[str, Any]:
    """What a method was called with, by the names of its parameters, defaults included."""
    if call is None:
        raise KeystoneError(
            "a scorer is shown what the policy's sampling method is called with, which torch.compile hides"
        )
    bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
    bound.apply_defaults()
    named = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named.update(named.pop(name))
    return named
