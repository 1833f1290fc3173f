"""The state of a wrapped server: the attached policy, the episodes of its sessions, and their selections."""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import itertools
import json
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.integrations.round_log import BY_ROW, OPTIONAL_BY_ROW, RoundLog, summary
from keystone_robotics.integrations.vla_eval.find import NoPolicy, attach_to_server, holds_a_model
from keystone_robotics.integrations.vla_eval.options import ServeOptions
from keystone_robotics.monitor.alarm import Alarm
from keystone_robotics.sample.noise import derive_seed
from keystone_robotics.select.rules.checks import whole
from keystone_robotics.view import RerunLog

log = logging.getLogger("keystone")


@dataclass
class PredictCall:
    """One call of `predict` or `predict_batch`: its sessions, and summaries of its rounds."""

    contexts: Sequence[Any]
    rounds: list[dict[str, Any]] = field(default_factory=list)


_current_call: contextvars.ContextVar[PredictCall | None] = contextvars.ContextVar("keystone_vla_eval", default=None)


class Serving:
    """KeyStone's part of a wrapped server.

    Attributes:
        options: the server's `keystone:` block.
        token: what requests that change options must send, or None.
        handle: None until the server has loaded its policy.
    """

    def __init__(self, options: ServeOptions, token: str | None = None) -> None:
        self.options = options
        self.token = token
        self.handle: Handle | None = None
        self.alarm = Alarm.load(options.alarm) if options.alarm else None
        self._rerun = RerunLog(options.rerun, alarm=self.alarm) if options.rerun else None
        self._log: RoundLog | None = None
        self._attaching = threading.Lock()
        self._episodes: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    @property
    def k(self) -> int | str:
        """Candidates per round; "auto" before it is measured, "4..16" for adaptive K before the policy is loaded."""
        if self.handle is not None:
            return self.handle.k
        return self.options.spec.k

    @k.setter
    def k(self, value: int) -> None:
        whole("k", value)
        spec = self.options.spec
        execute = spec.most_steps if value == 1 else spec.execute  # one candidate cannot disagree
        self.options = replace(self.options, spec=replace(spec, k=value, execute=execute))
        if self.handle is not None:
            self.handle.k = value

    def attach(self, server: Any, last_chance: bool = False) -> None:
        """Attach to the server's model. If it has none yet, wait: some servers load it at the first observation.

        Raises:
            KeystoneError: if its model is not supported, or cannot be attached to.
        """
        try:
            self.handle = attach_to_server(server, self.options)
        except NoPolicy:
            if last_chance or holds_a_model(server):
                raise
            log.info(
                "KeyStone: %s has not loaded a model yet; attaching at the first observation", type(server).__name__
            )
            return
        if self.alarm is not None:
            self.handle.subscribe(self.alarm)
        self._log = RoundLog(self.options.rounds, self.alarm) if self.options.rounds else None
        self.handle.subscribe(self.record)
        if self._rerun is not None:
            self.handle.subscribe(self._rerun)

    def begin(self, config: dict[str, Any], context: Any) -> None:
        """Start an episode of a session; ``config["task"]`` is the benchmark's description of it."""
        task = self._episodes[context] = dict(config.get("task") or {})
        if self.alarm is not None:
            self.alarm.check_task(str(task.get("name") or ""))

    def answer(self, server: Any, predict: Callable[[], list[Any]], contexts: Sequence[Any]) -> list[Any]:
        """The server's answers to these sessions, with the selection of each if every answer has one round row."""
        if _current_call.get() is not None:  # predict called predict_batch, or vice versa
            return predict()
        call = PredictCall(contexts)
        token = _current_call.set(call)
        try:
            with self._seeded(contexts), self._named(contexts):
                answers = list(predict())
        finally:
            _current_call.reset(token)
        with self._attaching:  # several sessions may call first at the same time
            if self.handle is None:
                self.attach(server, last_chance=True)
                log.warning(
                    "KeyStone: the model was loaded at the first observation, which was answered with a single sample"
                )
        return _with_diagnostics(answers, call)

    def record(self, event: RoundEvent) -> None:
        """Listener: store the summary of a round for the answer, and log it with the episodes of its rows."""
        if event.path == "own":  # K = 1: the server answers as it does without KeyStone
            return
        call = _current_call.get()
        line = summary(event, self.alarm)
        if call is None:
            if self._log is not None:
                self._log(event)
            return
        first = sum(len(one["index"]) for one in call.rounds)
        call.rounds.append(line)
        # A batch may be sampled in one round or row by row; rows are in the order of the sessions.
        rows = call.contexts[first : first + len(line["index"])]
        if self._log is not None:
            self._log(event, episodes=[self._episode_of(context) for context in rows])

    def _episode_of(self, context: Any) -> dict[str, Any]:
        task = self._episodes.get(context, {})
        return {
            "task": task.get("name"),
            "episode": task.get("episode_idx"),
            "step": context.step,
            "session": context.session_id,
            "id": context.episode_id,
        }

    def _named(self, contexts: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Rows belong to the episodes of the sessions, in their order."""
        if self.handle is None:
            return contextlib.nullcontext()
        return self.handle.for_episodes(iter([(context.session_id, context.episode_id) for context in contexts]))

    def _seeded(self, contexts: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """With a seed, the noise of a row depends on the seed, episode and step, not on the batch or the order of requests."""
        seed = self.options.spec.seed
        if seed is None or self.handle is None:
            return contextlib.nullcontext()
        seeds = [
            derive_seed(seed, _hash_of(self._episodes.get(context) or context.episode_id), context.step)
            for context in contexts
        ]
        return self.handle.seeded(_seed_stream(seeds))


def _seed_stream(seeds: list[int]) -> Iterator[int]:
    """One seed per row, then further ones for policies that draw several rounds per row."""
    return itertools.chain(seeds, (derive_seed(seeds[0], again) for again in itertools.count(1)))


def _hash_of(episode: object) -> int:
    text = json.dumps(episode, sort_keys=True, default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _with_diagnostics(answers: list[Any], call: PredictCall) -> list[Any]:
    """Add the selections under "keystone", if there is one for each answer."""
    rows = [
        {
            **{key: line[key] for key in ("round", "k", "rule")},
            **{key: line[key][row] for key in (*BY_ROW, *(name for name in line if name.startswith(OPTIONAL_BY_ROW)))},
        }
        for line in call.rounds
        for row in range(len(line["index"]))
    ]
    if len(rows) != len(answers):
        return answers
    return [
        {**answer, "keystone": row} if isinstance(answer, dict) and "keystone" not in answer else answer
        for answer, row in zip(answers, rows)
    ]
