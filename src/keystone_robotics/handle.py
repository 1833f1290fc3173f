"""The handle that `keystone.attach` returns: a view of the engine of an attached policy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.option_values import check_execute, check_k
from keystone_robotics.sample.adaptive import refuse_adaptive_k
from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.episodes import episode_scope
from keystone_robotics.sample.event import Listener, RoundEvent
from keystone_robotics.sample.queues import action_queues, watch_queue
from keystone_robotics.sample.resets import watch_reset
from keystone_robotics.sample.seeds import seed_scope
from keystone_robotics.sample.settings import rehearsal, replay, set_k, set_steps
from keystone_robotics.select import ActionSpace, Selection
from keystone_robotics.select.agreement import AdaptiveRange
from keystone_robotics.select.metrics import check_metric
from keystone_robotics.select.rules import bind
from keystone_robotics.select.rules.base import Rule
from keystone_robotics.select.rules.checks import whole
from keystone_robotics.spec import Spec

__all__ = ["Handle", "Listener", "RoundEvent"]


@dataclass(repr=False, slots=True)
class Handle:
    """The last selection of an attached policy, counters, listeners, and settings that may change between rounds.

    Attributes:
        engine: of the policy; handles of the same engine are equal.
    """

    engine: Engine

    def __hash__(self) -> int:
        return hash(self.engine)

    def __repr__(self) -> str:
        k = (self.engine.k_range or self.k) if self.engine.k_given else "auto"
        steps = "" if self.steps is None else f", steps={self.steps}"
        return (
            f"<KeyStone: K={k}{steps}, rule {self.rule.name}, adapter {self.adapter}, {self.path} path, "
            f"{self.engine.counters.rounds} rounds; last: {self.last}>"
        )

    @property
    def adapter(self) -> str:
        """Name of the adapter."""
        return self.engine.adapter.name

    @property
    def spec(self) -> Spec:
        """The specification in force, with every later change; ``attach(policy, handle.spec)`` attaches alike.

        What ``window`` and ``gripper`` said is in ``space``.
        """
        engine, selector = self.engine, self.engine.selector
        k = (str(engine.k_range) if engine.k_range else engine.k) if engine.k_given else "auto"
        execute = self.execute if engine.k > 1 else selector.execute  # with K = 1 nothing is adaptive
        return Spec(
            selector.rule, k, engine.steps, engine.temperature, engine.seed,
            selector.metric, execute=execute, space=selector.space, fast=engine.paths.fast, compile=engine.compile,
        )  # fmt: skip

    @property
    def k(self) -> int:
        """Candidates per round, at most; may be changed at any time, 1 turns KeyStone off. May be set to a range, "4..16"."""
        return self.engine.k

    @k.setter
    def k(self, value: int | str) -> None:
        if value == "auto" or value is None:
            raise ValueError(
                f'k={value!r}: expected a whole number, or a range such as 4..16; attach with k="auto" instead'
            )
        span = AdaptiveRange.parse(check_k("k", value))
        if span is not None:
            refuse_adaptive_k(self.engine.adapter)
        if self.engine.selector.horizon is not None and value != 1:  # with K = 1 nothing is adaptive
            self.spec.replace(k=value, execute=self.execute)  # raises if the rule does not go with it
        set_k(self.engine, int(value) if span is None else int(span.most or 0), span)

    @property
    def steps(self) -> int | None:
        """Denoising steps of each candidate; None for the policy's own number. May be changed between rounds."""
        return self.engine.steps

    @steps.setter
    def steps(self, value: int | None) -> None:
        if value is not None:
            whole("steps", value)
        set_steps(self.engine, value)

    @property
    def rule(self) -> Rule:
        """The rule with its parameters; may be changed between rounds. One that looks back does so from the next round on."""
        return self.engine.selector.rule

    @rule.setter
    def rule(self, value: Any) -> None:
        rule, before = bind(value, {}), self.rule
        self.spec.replace(rule=rule)  # raises if it does not go with the other options
        self.engine.selector.rule = rule
        if not rule.remembers or before.remembers:
            return
        self.engine.selector.reset_history()  # what an earlier rule remembered may be of another episode
        try:
            watch_reset(self.engine)
        except KeystoneError as error:
            self.engine.selector.rule = before
            raise KeystoneError(
                f"rule {rule.name} looks back at the previous chunk, and the end of an episode cannot be seen: {error}; keep "
                f"rule {before.name}"
            ) from error

    @property
    def metric(self) -> str:
        """Metric of distances: "l2", "l1" or "cosine"; may be changed between rounds."""
        return self.engine.selector.metric

    @metric.setter
    def metric(self, value: str) -> None:
        check_metric(value)
        self.engine.selector.metric = value

    @property
    def space(self) -> ActionSpace | None:
        """Dimensions and steps used in distances, with defaults from the policy; may be changed between rounds."""
        return self.engine.selector.space

    @space.setter
    def space(self, value: ActionSpace | None) -> None:
        if value is not None and not isinstance(value, ActionSpace):
            raise TypeError(f"space={value!r}: expected a keystone.ActionSpace or None")
        replace(self.engine.selector, space=value)  # raises if the policy needs more than that
        if value is not None and self.last is not None:
            value.layout(*self.last.chunk.shape[-2:])  # raises if it does not fit the policy's chunks
        self.engine.selector.space = value

    @property
    def execute(self) -> int | str | None:
        """Executed steps of a chunk, or how their number is found ("auto", "2..8"); None for the policy's configuration. May be
        changed between rounds.
        """
        selector = self.engine.selector
        return selector.execute if selector.horizon is None else str(selector.horizon)

    @execute.setter
    def execute(self, value: int | str | None) -> None:
        spec = self.spec.replace(execute=check_execute("execute", value)) if value is not None else None
        most, horizon = (None, None) if spec is None else (spec.most_steps, spec.execute_range)
        if most is not None and self.last is not None and most > self.last.chunk.shape[-2]:
            raise ValueError(f"execute={value}: the policy's chunks have {self.last.chunk.shape[-2]} steps")
        selector = self.engine.selector
        replace(selector, execute=most)  # raises if the policy needs it
        if horizon is not None:
            watch_queue(self.engine)
        selector.execute, selector.horizon = most, horizon

    @property
    def path(self) -> str:
        """How the last round's candidates were drawn: "fast" or "plain"; "undecided" before the first round."""
        return self.engine.path

    @property
    def last(self) -> Selection | None:
        """The `Selection` of the last round (batched over its rows), or None."""
        return self.engine.last

    @property
    def stats(self) -> dict[str, float]:
        """Counters since attaching: rounds, selected chunks, candidates drawn, how many chunks were clustered, candidates
        dropped as non-finite, mean consensus and dispersion, and seconds spent sampling and selecting.
        """
        with self.engine.lock:
            return self.engine.counters.as_dict()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with a `RoundEvent` after every round; returns the function that removes it.

        Any number of listeners. One that raises is logged and removed; the round continues (``KeyboardInterrupt`` and
        ``SystemExit`` do end it). A listener that blocks delays the chunk: give slow work to a thread. If it has a method
        ``on_subscribe``, that is called first, with this handle.
        """
        if hasattr(listener, "on_subscribe"):
            listener.on_subscribe(self)
        return self.engine.listeners.subscribe(listener)

    def seeded(self, seeds: Sequence[int] | Iterator[int] | int) -> AbstractContextManager[None]:
        """Within ``with handle.seeded(7):`` the noise is derived from the seed, or from one seed per row of the batch; with an
        iterator every row of every round takes the next.
        """
        return seed_scope(id(self.engine), seeds)

    def for_episodes(self, ids: Sequence[Hashable] | Iterator[Hashable]) -> AbstractContextManager[None]:
        """Within ``with handle.for_episodes([id, …]):`` listeners read in `RoundEvent.episodes` whose row each is; with an
        iterator every row of every round takes the next. Without it the rows of the batch are episodes, until ``reset``.
        """
        return episode_scope(id(self.engine), ids)

    def rehearsal(self, *listeners: Listener) -> AbstractContextManager[None]:
        """Rounds within this block are not counted or remembered, and are reported to these listeners only: for warm-up and
        measurements.
        """
        return rehearsal(self.engine, *listeners)

    def replay(self, number: int, k: int | None = None) -> Tensor:
        """Draw the candidates (B, K, T, D) of a round again, optionally with another K; requires ``attach(…, keep=…)``."""
        return replay(self.engine, number, k)

    @property
    def history(self) -> Tensor | None:
        """(B, T, D) the previous chunks of the rows, for rules that look back; None at the start of an episode.

        A caller whose batches change from round to round, a server, sets those of the next round's rows.
        """
        return self.engine.selector.history

    @history.setter
    def history(self, chunks: Tensor | None) -> None:
        self.engine.selector.history = chunks

    def reset_history(self) -> None:
        """Forget the previous chunk, at the start of an episode."""
        self.engine.reset_history()

    def replan(self) -> int:
        """Drop the steps that LeRobot's ``select_action`` has queued, so that its next call draws a new chunk. Past
        observations and episodes stay, as they do not with ``reset``. Returns how many were dropped.

        Call it where ``select_action`` is called: in a listener the chunk is not queued yet, and another thread may empty the
        queue while a step is taken.
        """
        queues = action_queues(self.engine.owner)
        dropped = sum(map(len, queues))
        for queue in queues:
            queue.clear()
        if dropped:  # rules that look back take it that all of them were executed
            self.engine.selector.reset_history()
        return dropped

    def watch_reset(self) -> None:
        """From now on the policy's own ``reset`` does the same, as it does with rules that use the previous chunk."""
        watch_reset(self.engine)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows of the previous chunk, after other episodes of the batch have ended."""
        self.engine.keep_rows(rows)
