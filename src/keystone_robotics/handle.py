"""What `keystone.attach` returns, and how an attached policy chooses."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.drawn import Drawn
from keystone_robotics.sample.session import Session
from keystone_robotics.select import ActionSpace, Selection, select
from keystone_robotics.select.rules.base import Rule
from keystone_robotics.select.rules.checks import whole

log = logging.getLogger("keystone")


@dataclass(frozen=True)
class Chosen:
    """One finished round, as `Handle.on_round` functions get it.

    Attributes:
        number: of the round since attaching.
        seeds: one per row; the noise of the round follows from them.
        candidates: (B, K, T, D) as the policy's sampler returned them (normalised, padded).
        selection: batched over the B rows.
        sampling_seconds: time taken to draw the candidates.
        selection_seconds: time taken to choose.
    """

    number: int
    seeds: tuple[int, ...]
    candidates: Tensor
    selection: Selection
    sampling_seconds: float
    selection_seconds: float


class Handle:
    """The last selection of an attached policy, counters, a hook, and settings that may change between rounds.

    Attributes:
        adapter: name of the adapter at work.
        sampler: the adapter itself.
        rule: the rule with its parameters.
        metric: "l2", "l1" or "cosine".
        space: what counts in distances. What it leaves open (``dims`` or ``steps``; both, if it is None) comes from the policy:
            its real dimensions, its executed steps.
        execute: steps of a chunk that whoever calls the policy executes, or None for what the policy's configuration says.
        last: the `Selection` of the last round (batched), or None.
        on_round: a function that is called with a `Chosen` after every round, or None.
    """

    session: Session
    overrides: list[tuple[Any, Any]]

    def __init__(
        self,
        adapter: Adapter,
        config: Any,
        rule: Rule,
        metric: str,
        space: ActionSpace | None,
        execute: int | None = None,
    ) -> None:
        self.adapter = adapter.name
        self.rule = rule
        self.metric = metric
        self.space = space
        self.execute = execute
        self.last: Selection | None = None
        self.on_round: Callable[[Chosen], None] | None = None
        self.sampler, self._config = adapter, config
        self._lock = threading.Lock()
        self._spaces: dict[Any, ActionSpace] = {}
        self._completed: ActionSpace | None = None
        self._previous: Tensor | None = None
        self._warned = False
        if adapter.padded:
            self._check_known(self._window())
        self._counts = {"rounds": 0, "chunks": 0, "clustered": 0, "dropped": 0}
        self._sums = {"consensus": 0.0, "sampling_seconds": 0.0, "selection_seconds": 0.0}

    def __repr__(self) -> str:
        rounds = self._counts["rounds"]
        k = self.k if self.session.tuner is None else "auto"
        return (
            f"<KeyStone: K={k}, rule {self.rule.name}, adapter {self.adapter}, {self.path} path, {rounds} rounds; "
            f"last: {self.last}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    @property
    def k(self) -> int:
        """Candidates per round; may be changed at any time, 1 turns KeyStone off. With ``k="auto"`` the first round sets it."""
        return self.session.k

    @k.setter
    def k(self, value: int) -> None:
        whole("k", value)
        session = self.session
        with session.checking:  # not in the middle of a self-check
            if session.finding is not None and session.finding.k == 1 < value:
                session.checked = False  # one candidate proves nothing about several: check again
            session.k, session.tuner = value, None

    @property
    def path(self) -> str:
        """How the last round's candidates were drawn: "fast" or "plain"; "undecided" before the first round."""
        return self.session.paths.last

    @property
    def stats(self) -> dict[str, float]:
        """Counters since attaching: rounds, chunks chosen, how many were clustered, candidates dropped as non-finite, mean
        consensus, and seconds spent sampling and selecting.
        """
        with self._lock:
            chunks = max(self._counts["chunks"], 1)
            return {**self._counts, **self._sums, "consensus": self._sums["consensus"] / chunks}

    def seeded(self, seeds: Sequence[int] | Iterator[int] | int) -> AbstractContextManager[None]:
        """Within ``with handle.seeded(7):`` the noise follows from the seed, or from one seed for each row of the batch; of an
        iterator every row of every round takes the next.
        """
        return self.session.seeded(seeds)

    def replay(self, number: int) -> Tensor:
        """(B, K, T, D) the candidates of a round drawn again; needs ``keep`` at attaching."""
        return self.session.replay(number)

    def forget(self) -> None:
        """A new episode begins: rules that look back have nothing to look back at."""
        self._previous = None

    def only(self, rows: Sequence[int]) -> None:
        """Some episodes of a batch have ended: the rows of the next round are these rows of the last one."""
        if self._previous is not None:
            self._previous = self._previous[list(rows)]

    def pick(self, drawn: Drawn) -> Selection:
        """What would be chosen in a round; nothing is counted or remembered."""
        # One seed for all: with the round's, a row's choice would depend on the rows beside it.
        return select(drawn.candidates, self._with_previous(drawn), self._space(drawn), seed=0, metric=self.metric)

    def __call__(self, drawn: Drawn) -> Tensor:
        """Choose one chunk for each row of a round."""
        begin = time.perf_counter()
        selection = self.pick(drawn)
        seconds = time.perf_counter() - begin
        if self.rule.remembers:
            self._previous = selection.chunk
        with self._lock:
            self.last = selection
            self._counts["rounds"] += 1
            self._counts["chunks"] += len(selection.index)
            self._counts["clustered"] += int(selection.clustered.sum())
            self._counts["dropped"] += int(selection.dropped.sum())
            self._sums["consensus"] += float(selection.consensus.sum())
            self._sums["sampling_seconds"] += drawn.seconds
            self._sums["selection_seconds"] += seconds
        if self.on_round is not None:
            self.on_round(Chosen(drawn.number, drawn.seeds, drawn.candidates, selection, drawn.seconds, seconds))
        chunk: Tensor = selection.chunk
        return chunk

    def _window(self) -> Window | None:
        """What is real and executed, as far as the policy or the caller tells."""
        window = self.sampler.window(self._config)
        if self.execute is None:
            return window
        return Window(None, 0, self.execute) if window is None else replace(window, steps=self.execute)

    def _space(self, drawn: Drawn) -> ActionSpace | None:
        """The caller's space; what it leaves open are the real dimensions and the steps that will be executed."""
        given = self.space
        if given is not None and given.dims is not None and given.steps is not None:
            return given
        window = self._window()
        self._check_known(window)
        if window is None:
            return given
        steps, dims = drawn.candidates.shape[2:]
        if given is not self._completed:  # the caller has set another one
            self._completed = given
            self._spaces.clear()
        key = (window, drawn.delay, steps, dims)
        completed = self._spaces.get(key)
        if completed is None:
            start = min(window.start + drawn.delay, steps - 1)
            space = ActionSpace() if given is None else given
            completed = self._spaces[key] = replace(
                space,
                dims=min(window.dims or dims, dims) if space.dims is None else space.dims,
                steps=range(start, min(start + window.steps, steps)) if space.steps is None else space.steps,
            )
        return completed

    def _check_known(self, window: Window | None) -> None:
        """Padding outvotes what is real: where it cannot be told apart, the caller has to say."""
        known = {"dims": window is not None and window.dims is not None, "steps": window is not None}
        missing = [name for name in known if not known[name] and getattr(self.space, name, None) is None]
        if missing and self.sampler.padded:
            raise KeystoneError(
                f"{self.sampler.name}: {self.sampler.padded}. Missing: {' and '.join(missing)}. Give them: "
                "keystone.attach(policy, space=keystone.ActionSpace(dims=7), execute=8), dims being the robot's action "
                "dimensions and execute the steps that are executed before the next observation"
            )

    def _executed(self) -> int | None:
        """How many steps of a chunk pass before the next one; None if nobody says."""
        window = self._window()
        return None if window is None else window.steps

    def _with_previous(self, drawn: Drawn) -> Rule:
        """The rule, told what the previous chunk had planned from now on, if it wants to know."""
        previous, executed = self._previous, self._executed()
        rows = drawn.candidates.shape[0]
        if not self.rule.remembers or previous is None or len(previous) != rows:
            return self.rule
        ahead = previous[:, executed:]
        if executed is None or not ahead.shape[1]:
            if not self._warned:
                self._warned = True
                reason = (
                    "nobody says how many steps of a chunk are executed (give execute=…)"
                    if executed is None
                    else "every chunk is executed to its end"
                )
                log.warning("KeyStone: %s, so rule %s has nothing to look back at", reason, self.rule.name)
            return self.rule
        return replace(self.rule, previous=ahead)  # type: ignore[call-arg]
