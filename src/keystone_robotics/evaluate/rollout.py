"""Episodes in lockstep: all that still run share every round as one batch, N episodes times K candidates wide."""

from __future__ import annotations

import hashlib
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Array, Observation
from keystone_robotics.errors import KeystoneError, NoValidCandidate
from keystone_robotics.evaluate.results import EpisodeResult, RoundRecord
from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.policies.agent import Agent

log = logging.getLogger("keystone")


class NonFiniteAction(ValueError):
    """What the policy wants executed is not a number; it is not executed."""


@dataclass
class Episode:
    """One that is under way.

    Attributes:
        number: of the episode.
        env: where it happens.
        initial_seed: for the reset.
        noise_seed: a function from the number of a round to the seed of its noise.
        history: the last observations.
    """

    number: int
    env: gymnasium.Env[Any, Any]
    initial_seed: int
    noise_seed: Callable[[int], int]
    history: deque[Observation] = field(default_factory=deque)
    initial_state: str = ""
    success: bool = False
    over: bool = False
    steps: int = 0
    rounds: int = 0
    consensus: list[float] = field(default_factory=list)
    latency_ms: float | None = None
    error: str | None = None
    kept: list[RoundRecord] = field(default_factory=list)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """An error ends this episode and is kept with it; the others go on."""
        try:
            yield
        except Exception as error:
            self.over, self.success = True, False
            self.error = "".join(traceback.format_exception(error))
            log.warning("episode %d: %s: %s", self.number, type(error).__name__, error)

    def result(self) -> EpisodeResult:
        consensus = float(np.mean(self.consensus)) if self.consensus else None
        return EpisodeResult(
            self.number, self.initial_state, self.initial_seed, self.noise_seed(0), self.success, self.steps, self.rounds,
            consensus, self.latency_ms, self.error, tuple(self.kept),
        )  # fmt: skip


def roll_out(
    agent: Agent,
    handle: Handle,
    episodes: Sequence[Episode],
    task: str,
    max_steps: int,
    *,
    keep_rounds: bool = False,
    on_step: Callable[[Episode], None] | None = None,
) -> list[EpisodeResult]:
    """Roll out episodes of one task from their initial states to their ends.

    Args:
        agent: the policy, to which `handle` is attached.
        handle: of that policy.
        episodes: new ones, or under way (with a history).
        task: of all of them.
        max_steps: after which an episode has failed.
        keep_rounds: keep the candidates of every round with the episode.
        on_step: called after the reset and after every step of an episode, to film it, say.

    Raises:
        KeystoneError: if something is wrong with the set-up rather than with an episode.
    """
    fresh = [episode for episode in episodes if not episode.history]
    for episode in fresh:
        with episode.guarded():
            _begin(episode, agent.history)
            if on_step:
                on_step(episode)
    begun = [episode for episode in fresh if not episode.over]
    if begun and not handle.engine.verified:
        _check(agent, handle, begun, task)
    _measure_latency(agent, handle, begun, task)
    handle.reset_history()
    while running := [episode for episode in episodes if not episode.over]:
        planned = _plan(agent, handle, running, task)
        for episode, chunk, row in planned:
            with episode.guarded():
                actions = execute_chunk(episode, chunk[: agent.execute], max_steps, on_step)
                _record(episode, row, actions if keep_rounds else None)
        handle.keep_rows([row for row, (episode, _, _) in enumerate(planned) if not episode.over])
    return [episode.result() for episode in episodes]


def _begin(episode: Episode, history: int) -> None:
    observation, info = episode.env.reset(seed=episode.initial_seed)
    episode.history = deque([observation], maxlen=history)
    state = info.get("initial_state")
    episode.initial_state = fingerprint(observation if state is None else state)


def _check(agent: Agent, handle: Handle, episodes: Sequence[Episode], task: str) -> None:
    """One round that nobody executes, for the self-check: of all episodes, because rows that get mixed up take several."""
    try:
        with handle.seeded([episode.noise_seed(0) for episode in episodes]):
            agent.plan([episode.history for episode in episodes], [task] * len(episodes))
    except Exception as error:  # that of an episode will come again
        if _set_up_is_wrong(error):
            raise
    finally:
        handle.reset_history()


def _measure_latency(agent: Agent, handle: Handle, episodes: Sequence[Episode], task: str) -> None:
    """One round for each episode alone, as a robot would ask for it, on its first observation."""
    warm = False
    for episode in episodes:
        seeds = [episode.noise_seed(0)]
        try:
            with handle.seeded(seeds):
                if not warm:  # the first call loads, compiles and checks
                    agent.plan([episode.history], [task])
                    warm = True
                begin = time.perf_counter()
                agent.plan([episode.history], [task])
            episode.latency_ms = 1e3 * (time.perf_counter() - begin)
        except Exception as error:  # its first round will say so
            if _set_up_is_wrong(error):
                raise
        finally:
            handle.reset_history()


def _plan(agent: Agent, handle: Handle, running: Sequence[Episode], task: str) -> list[tuple[Episode, Array, _Row]]:
    """Chunks for all that run. If the batch fails, each is asked for alone, so that an error ends one episode, not all; a rule
    that looks back has nothing to look back at in that round and the next.
    """

    def ask(episodes: Sequence[Episode]) -> list[tuple[Episode, Array, _Row]]:
        rounds: list[RoundEvent] = []
        unsubscribe = handle.subscribe(rounds.append)
        try:
            with handle.seeded([episode.noise_seed(episode.rounds) for episode in episodes]):
                chunks = agent.plan([episode.history for episode in episodes], [task] * len(episodes))
        finally:
            unsubscribe()
        for episode, chunk in zip(episodes, chunks, strict=True):
            _check_actions(episode, chunk)
        chosen = rounds[-1] if rounds else None
        return [(episode, chunk, _Row(chosen, row)) for row, (episode, chunk) in enumerate(zip(episodes, chunks))]

    try:
        return ask(running)
    except Exception as error:
        if _set_up_is_wrong(error):
            raise
        log.debug("a batch of %d episodes failed; each goes on alone in this round", len(running))
    planned = []
    for episode in running:
        handle.reset_history()
        with episode.guarded():
            planned += ask([episode])
    handle.reset_history()
    return planned


def _check_actions(episode: Episode, chunk: Array) -> None:
    shape = episode.env.action_space.shape
    if chunk.shape[1:] != shape:
        raise KeystoneError(
            f"this policy's actions have the shape {chunk.shape[1:]}, the environment's {shape}: it was trained for another one"
        )


def _set_up_is_wrong(error: Exception) -> bool:
    """The same would happen in every episode: a failed self-check, observations of the wrong size."""
    return isinstance(error, KeystoneError) and not isinstance(error, NoValidCandidate)


@dataclass(frozen=True)
class _Row:
    """One row of a round; empty where the round was not seen."""

    chosen: RoundEvent | None
    row: int

    def consensus(self) -> float | None:
        if self.chosen is None or self.chosen.candidates.shape[1] == 1:
            return None
        return float(self.chosen.selection.consensus[self.row])

    def record(self, episode: Episode, actions: NDArray[np.float32]) -> RoundRecord | None:
        if self.chosen is None:
            return None
        selection = self.chosen.selection
        return RoundRecord(
            number=episode.rounds,
            step=episode.steps - len(actions),
            candidates=self.chosen.candidates[self.row].float().cpu().numpy().copy(),
            labels=np.asarray(selection.labels[self.row]).copy(),
            index=int(selection.index[self.row]),
            synthesised=bool(selection.synthesised),
            consensus=float(selection.consensus[self.row]),
            spread=float(selection.spread[self.row]),
            actions=actions,
        )


def _record(episode: Episode, row: _Row, actions: NDArray[np.float32] | None) -> None:
    """Count a round, and keep it if its actions are given."""
    consensus = row.consensus()
    if consensus is not None:
        episode.consensus.append(consensus)
    if actions is not None and (record := row.record(episode, actions)):
        episode.kept.append(record)
    episode.rounds += 1


def execute_chunk(
    episode: Episode, chunk: NDArray[Any], max_steps: int, on_step: Callable[[Episode], None] | None = None
) -> NDArray[np.float32]:
    """Execute a chunk, or as much of it as there is time for; returns the actions (n, A) as they were executed.

    Raises:
        NonFiniteAction: before anything is executed that is not a number.
    """
    space = episode.env.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    executed = []
    for planned in chunk:
        if not np.isfinite(planned).all():
            raise NonFiniteAction(f"the policy planned {planned.tolist()} for step {episode.steps}: not executed")
        action = np.clip(planned, space.low, space.high).astype(space.dtype)
        observation, _, terminated, truncated, info = episode.env.step(action)
        executed.append(action)
        episode.steps += 1
        episode.history.append(observation)
        episode.success = bool(info.get("success", info.get("is_success", False)))
        episode.over = bool(episode.success or terminated or truncated or episode.steps >= max_steps)
        if on_step:
            on_step(episode)
        if episode.over:
            break
    return np.asarray(executed, np.float32)


def fingerprint(state: Any) -> str:
    """A short hash of arrays, rounded to seven digits: what differs on another machine in the last digits only nearly always
    has the same.

    >>> fingerprint(np.array([1.0, 2.0])) == fingerprint(np.array([1.0, 2.0 + 1e-12]))
    True
    >>> fingerprint({"b": np.zeros(2), "a": "open the drawer"}) == fingerprint({"b": np.ones(2), "a": "open the drawer"})
    False
    """
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                digest.update(key.encode())
                add(value[key])
        elif isinstance(value, str):
            digest.update(value.encode())
        else:
            array = np.asarray(value)
            if array.dtype.kind == "f":
                array = np.round(array.astype(np.float64), 7) + 0.0  # no negative zero
            digest.update(str(array.shape).encode() + array.tobytes())

    add(state)
    return digest.hexdigest()[:16]
