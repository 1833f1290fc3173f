"""Episodes in lockstep: all running episodes share every round as one batch of N episodes × K candidates."""

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
from keystone_robotics.evaluate.activity import Activity
from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.policies.agent import Agent
from keystone_robotics.records import EpisodeRecord, RoundRecord
from keystone_robotics.select import Selection

log = logging.getLogger("keystone")

#: What ends an episode and not the evaluation: environments and policies also call ``sys.exit()``.
EPISODE_ERRORS = (Exception, SystemExit)


class NonFiniteAction(ValueError):
    """The policy returned an action with a NaN or an infinity; it was not executed."""


@dataclass
class LiveEpisode:
    """An episode that is being rolled out.

    Attributes:
        number: index of the initial state within the task.
        env: its environment.
        initial_seed: seed of the reset.
        noise_seed: maps the number of a round to the seed of its noise.
        arm: name of the arm, for the record.
        repeat: number of the repeat, for the record.
        history: the last observations, oldest first.
    """

    number: int
    env: gymnasium.Env[Any, Any]
    initial_seed: int
    noise_seed: Callable[[int], int]
    arm: str = ""
    repeat: int = 0
    history: deque[Observation] = field(default_factory=deque)
    initial_state: str = ""
    success: bool = False
    over: bool = False
    steps: int = 0
    rounds: int = 0
    statistics: list[dict[str, float]] = field(default_factory=list)
    latency_ms: float | None = None
    error: str | None = None
    kept: list[RoundRecord] = field(default_factory=list)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """An error inside this block ends this episode and is stored with it; the others continue."""
        try:
            yield
        except EPISODE_ERRORS as error:
            self.over, self.success = True, False
            self.error = "".join(traceback.format_exception(error))
            log.warning("episode %d: %s: %s", self.number, type(error).__name__, error)

    def record(self, task: str) -> EpisodeRecord:
        names = self.statistics[0] if self.statistics else ()
        means = {name: float(np.mean([one[name] for one in self.statistics])) for name in names}
        return EpisodeRecord(
            arm=self.arm,
            task=task,
            repeat=self.repeat,
            episode=self.number,
            success=self.success,
            initial_state=self.initial_state,
            initial_seed=self.initial_seed,
            noise_seed=self.noise_seed(0),
            steps=self.steps,
            rounds=self.rounds,
            latency_ms=self.latency_ms,
            error=self.error,
            kept_rounds=tuple(self.kept),
            **means,
        )


def roll_out(
    agent: Agent,
    handle: Handle,
    episodes: Sequence[LiveEpisode],
    task: str,
    max_steps: int,
    *,
    keep_rounds: bool = False,
    latency: bool = True,
    activity: Activity | None = None,
) -> list[EpisodeRecord]:
    """Roll out episodes of one task from their initial states to their ends.

    Args:
        agent: the policy that `handle` is attached to.
        handle: of that policy.
        episodes: new, or already begun (with a history).
        task: name of their task.
        max_steps: environment steps after which an episode has failed.
        keep_rounds: keep the candidates of every round in the records.
        latency: time one round at batch size 1 for the first observation of every episode.
        activity: is told whose code runs.

    Raises:
        KeystoneError: if the setup is wrong, so that every episode would fail.
    """
    activity = activity or Activity()
    new = [episode for episode in episodes if not episode.history]
    for episode in new:
        with activity.environment(episode.number), episode.guarded():
            begin_episode(episode, agent.history)
    begun = [episode for episode in new if not episode.over]
    planner = Planner(agent, handle, task, activity)
    if begun and not handle.engine.verified:
        planner.check(begun)
    if latency:
        planner.measure_latency(begun)
    handle.reset_history()
    while running := [episode for episode in episodes if not episode.over]:
        planned = planner.plan(running)
        for episode, chunk, row in planned:
            with activity.environment(episode.number), episode.guarded():
                actions = execute_chunk(episode, chunk[: row.executed(agent.execute)], max_steps)
                _record(episode, row, actions if keep_rounds else None)
        handle.keep_rows([row for row, (episode, _, _) in enumerate(planned) if not episode.over])
    return [episode.record(task) for episode in episodes]


def begin_episode(episode: LiveEpisode, history: int) -> None:
    """Reset the environment to the initial state of the episode."""
    observation, info = episode.env.reset(seed=episode.initial_seed)
    episode.history = deque([observation], maxlen=history)
    state = info.get("initial_state")
    episode.initial_state = hash_state(observation if state is None else state)


@dataclass(frozen=True)
class Planner:
    """Asks the policy for chunks of a task's episodes."""

    agent: Agent
    handle: Handle
    task: str
    activity: Activity

    def check(self, episodes: Sequence[LiveEpisode]) -> None:
        """One round for the self-check that is not executed; all episodes at once: mixed-up rows need several to show."""
        try:
            self._ask(episodes, 0)
        except EPISODE_ERRORS as error:  # an episode's own error recurs in its first round
            if _is_setup_error(error):
                raise
        finally:
            self.handle.reset_history()

    def measure_latency(self, episodes: Sequence[LiveEpisode]) -> None:
        """Time one round at batch size 1, as on a robot, for the first observation of every episode."""
        warm = False
        for episode in episodes:
            try:
                if not warm:  # the first call loads kernels, compiles and checks
                    self.time_round(episode)
                    warm = True
                episode.latency_ms = self.time_round(episode)
            except EPISODE_ERRORS as error:  # noqa: PERF203 (it recurs in the first round of this episode alone)
                if _is_setup_error(error):
                    raise

    def time_round(self, episode: LiveEpisode, clock: Callable[[], float] = time.perf_counter) -> float:
        """Milliseconds of one round at batch size 1 for an episode's last observations. Nothing is executed or remembered."""
        begin = clock()
        try:
            self._ask([episode], 0)
            return 1e3 * (clock() - begin)
        finally:
            self.handle.reset_history()

    def plan(self, running: Sequence[LiveEpisode]) -> list[tuple[LiveEpisode, Array, _Row]]:
        """Chunks for all running episodes. If the batch fails, each episode is planned alone, so that an error ends one
        episode, not all; rules that use the previous chunk have none in that round and the next.
        """
        try:
            return self._plan_batch(running)
        except EPISODE_ERRORS as error:
            if _is_setup_error(error):
                raise
            log.debug("a batch of %d episodes failed; each is planned alone in this round", len(running))
        planned = []
        for episode in running:
            self.handle.reset_history()
            with episode.guarded():
                planned += self._plan_batch([episode])
        self.handle.reset_history()
        return planned

    def _plan_batch(self, episodes: Sequence[LiveEpisode]) -> list[tuple[LiveEpisode, Array, _Row]]:
        rounds: list[RoundEvent] = []
        unsubscribe = self.handle.subscribe(rounds.append)
        try:
            chunks = self._ask(episodes)
        finally:
            unsubscribe()
        for episode, chunk in zip(episodes, chunks, strict=True):
            _check_actions(episode, chunk)
        chosen = rounds[-1] if rounds else None
        return [(episode, chunk, _Row(chosen, row)) for row, (episode, chunk) in enumerate(zip(episodes, chunks))]

    def _ask(self, episodes: Sequence[LiveEpisode], round: int | None = None) -> Array:
        """(N, T, D) chunks, with the noise of the next round of each episode, or of this one."""
        seeds = [one.noise_seed(one.rounds if round is None else round) for one in episodes]
        ids = [(self.task, one.repeat, one.number) for one in episodes]
        with (
            self.activity.policy([one.number for one in episodes]),
            self.handle.seeded(seeds),
            self.handle.for_episodes(ids),
        ):
            return self.agent.plan([one.history for one in episodes], [self.task] * len(episodes))


def _check_actions(episode: LiveEpisode, chunk: Array) -> None:
    shape = episode.env.action_space.shape
    if chunk.shape[1:] != shape:
        raise KeystoneError(
            f"the policy's actions have shape {chunk.shape[1:]}, the environment takes {shape}: it was trained for another one"
        )


def _is_setup_error(error: BaseException) -> bool:
    """Whether every episode would fail alike: a failed self-check, observations of the wrong size."""
    return isinstance(error, KeystoneError) and not isinstance(error, NoValidCandidate)


@dataclass(frozen=True)
class _Row:
    """One row of a round; ``event`` is None if no round was reported."""

    event: RoundEvent | None
    row: int

    def executed(self, most: int) -> int:
        """Steps of the chunk to execute: as many as the candidates agree on, with an adaptive horizon."""
        agreed = None if self.event is None else self.event.selection.agreed_steps
        return most if agreed is None else min(most, int(agreed[self.row]))

    def statistics(self) -> dict[str, float]:
        """How far the candidates agree, and how many there were; empty for K = 1, where there is nothing to agree on."""
        if self.event is None or self.event.candidates.shape[1] == 1:
            return {}
        selection = self.event.selection
        return {**_statistics(selection, self.row), "drawn": float(selection.drawn[self.row])}

    def record(self, episode: LiveEpisode, actions: NDArray[np.float32]) -> RoundRecord | None:
        if self.event is None:
            return None
        selection = self.event.selection
        drawn = int(selection.drawn[self.row])  # another row may have needed more
        return RoundRecord(
            number=episode.rounds,
            step=episode.steps - len(actions),
            candidates=self.event.candidates[self.row, :drawn].float().cpu().numpy().copy(),
            labels=np.asarray(selection.labels[self.row, :drawn]).copy(),
            index=int(selection.index[self.row]),
            synthesised=bool(selection.synthesised),
            spread=float(selection.spread[self.row]),
            actions=actions,
            space=self.event.space,
            window=self.event.window,
            **_statistics(selection, self.row),
        )


def _statistics(selection: Selection, row: int) -> dict[str, float]:
    return {
        "consensus": float(selection.consensus[row]),
        "dispersion": float(selection.dispersion[row]),
        "median_distance": float(selection.median_distance[row]),
    }


def _record(episode: LiveEpisode, row: _Row, actions: NDArray[np.float32] | None) -> None:
    """Count a round, and keep it if its actions are given."""
    if statistics := row.statistics():
        episode.statistics.append(statistics)
    if actions is not None and (record := row.record(episode, actions)):
        episode.kept.append(record)
    episode.rounds += 1


def execute_chunk(
    episode: LiveEpisode, chunk: NDArray[Any], max_steps: int, on_step: Callable[[LiveEpisode], None] | None = None
) -> NDArray[np.float32]:
    """Execute a chunk until it or the episode ends; returns the actions (n, A) after clipping to the action space.

    Raises:
        NonFiniteAction: before an action with a NaN or an infinity is executed.
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


def hash_state(state: Any) -> str:
    """A short hash of arrays, strings or dicts of them. Floats are rounded to seven decimals, so that differences in the last
    digits between machines rarely change it.

    >>> hash_state(np.array([1.0, 2.0])) == hash_state(np.array([1.0, 2.0 + 1e-12]))
    True
    >>> hash_state({"b": np.zeros(2), "a": "open the drawer"}) == hash_state({"b": np.ones(2), "a": "open the drawer"})
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
