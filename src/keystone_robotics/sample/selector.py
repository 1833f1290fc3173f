"""How an attached policy selects one of its candidates: rule, metric, and the part of a chunk that counts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.select import ActionSpace, Selection, select
from keystone_robotics.select.rules.base import Rule

log = logging.getLogger("keystone")


@dataclass
class Selector:
    """The settings may change between rounds.

    Attributes:
        adapter: knows the real dimensions and the executed steps of the policy's chunks.
        config: where it looks for them.
        rule: the rule with its parameters.
        metric: "l2", "l1" or "cosine".
        space: what counts in distances. What it leaves open (``dims`` or ``steps``; both, if it is None) comes from the policy:
            its real dimensions, its executed steps.
        execute: steps of a chunk that the caller of the policy executes; None for what the policy's configuration says.
    """

    adapter: Adapter
    config: Any
    rule: Rule
    metric: str = "l2"
    space: ActionSpace | None = None
    execute: int | None = None
    _previous: Tensor | None = field(default=None, repr=False)
    _completed: dict[Any, tuple[ActionSpace | None, ActionSpace]] = field(default_factory=dict, repr=False)
    _warned: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.adapter.padding_reason:
            self._check_window(self._window())

    def select(self, candidates: Tensor, delay: int = 0) -> Selection:
        """One of the K candidates (B, K, T, D) of each row."""
        rule, space = self._rule(len(candidates)), self._space(candidates, delay)
        # One seed for all: with the round's, the selection of a row would depend on the rows beside it.
        return select(candidates, rule, space, seed=0, metric=self.metric)

    def remember(self, selection: Selection) -> None:
        """It is going to be executed: the next round of a rule that looks back continues it."""
        if self.rule.remembers:
            self._previous = selection.chunk

    def reset_history(self) -> None:
        """A new episode begins: rules that look back have nothing to look back at."""
        self._previous = None

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Some episodes of a batch have ended: the rows of the next round are these rows of the last one."""
        if self._previous is not None:
            self._previous = self._previous[list(rows)]

    def _window(self) -> Window | None:
        """What is real and executed, as far as the policy or the caller tells."""
        window = self.adapter.window(self.config)
        if self.execute is None:
            return window
        return Window(None, 0, self.execute) if window is None else replace(window, steps=self.execute)

    def _check_window(self, window: Window | None) -> None:
        """Padding outvotes what is real: where it cannot be told apart, the caller has to say."""
        known = {"dims": window is not None and window.dims is not None, "steps": window is not None}
        missing = [name for name in known if not known[name] and getattr(self.space, name, None) is None]
        if missing and self.adapter.padding_reason:
            raise KeystoneError(
                f"{self.adapter.name}: {self.adapter.padding_reason}. Missing: {' and '.join(missing)}. Give them: "
                "keystone.attach(policy, space=keystone.ActionSpace(dims=7), execute=8), dims being the robot's action "
                "dimensions and execute the steps that are executed before the next observation"
            )

    def _space(self, candidates: Tensor, delay: int) -> ActionSpace | None:
        """The caller's space, completed by the real dimensions and the steps that will be executed."""
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

    def _rule(self, rows: int) -> Rule:
        """The rule, told what the previous chunk had planned from now on, if it wants to know."""
        previous = self._previous
        if not self.rule.remembers or previous is None or len(previous) != rows:
            return self.rule
        window = self._window()
        ahead = None if window is None else previous[:, window.steps :]
        if ahead is None or not ahead.shape[1]:
            self._warn_once(
                "it is not known how many steps of a chunk are executed (give execute=…)"
                if ahead is None
                else "every chunk is executed to its end"
            )
            return self.rule
        return replace(self.rule, previous=ahead)  # type: ignore[call-arg]

    def _warn_once(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("KeyStone: %s, so rule %s has nothing to look back at", reason, self.rule.name)
