"""What would have become of the others: every candidate of one round, executed to the end of the episode."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from keystone.attach import attach, detach
from keystone.environments import find_benchmark
from keystone.environments.benchmark import Array
from keystone.evaluate.results import RoundRecord
from keystone.evaluate.rollout import Episode, execute_chunk, roll_out
from keystone.evaluate.settings import Settings
from keystone.policies import Agent, load_agent
from keystone.select import Round


@dataclass(frozen=True)
class Branches:
    """The candidates of one round and where each of them led.

    Attributes:
        success: (K,) whether the episode succeeded after each, the policy going on with one sample per round.
        steps: (K,) of the whole episode after each.
        paths: for each candidate (n, 3) or (n, 2), where the hand was before and after every step of the chunk.
    """

    success: NDArray[np.bool_]
    steps: NDArray[np.int64]
    paths: list[Array]


class Brancher:
    """Branches rounds of episodes of one task; ``with Brancher(settings, task) as brancher: …``.

    Args:
        settings: of the evaluation that the rounds are from.
        task: of the episodes.
    """

    def __init__(self, settings: Settings, task: str) -> None:
        self.settings, self.task = settings, task
        self.benchmark = find_benchmark(settings.env)
        self.agent = load_agent(settings.policy, settings.device)
        self.agent.fit(self.benchmark)
        if settings.execute:
            self.agent.execute = settings.execute
        self._envs: list[gymnasium.Env[Any, Any]] = []

    def __enter__(self) -> Brancher:
        return self

    def __exit__(self, *_: object) -> None:
        for env in self._envs:
            env.close()

    def branch(self, repeat: int, episode: int, rounds: Sequence[RoundRecord], at: int) -> Branches:
        """Execute each candidate of a stored round, and go on with one sample per round until the episode ends.

        The simulator is brought to the round by executing once more what was executed before it. All branches see the same
        noise afterwards, so that they differ in the candidate alone.

        Args:
            repeat: of the episode.
            episode: its number.
            rounds: of the episode, as stored, from the first on.
            at: number of the round to branch at.
        """
        agent, task, k = self.agent, self.task, len(rounds[at].candidates)
        limit = self.settings.max_steps or self.benchmark.max_steps(task)
        noise = partial(self.settings.noise_seed, repeat, task, episode)
        while len(self._envs) < k:
            self._envs.append(self.benchmark.make(task))
        branches = [Episode(row, self._envs[row], self.settings.initial_seed(episode), noise) for row in range(k)]
        paths: list[list[Array]] = [[] for _ in range(k)]

        def follow(one: Episode) -> None:
            paths[one.number].append(np.asarray(one.history[-1]["agent_pos"], np.float32)[:3])

        for one in branches:
            _bring(one, [action for record in rounds[:at] for action in record.actions], agent.history)
        for one, chunk in zip(branches, _all_candidates(agent, branches[0], task, k, noise(at)), strict=True):
            follow(one)
            execute_chunk(one, chunk[: agent.execute], limit, follow)
            one.rounds = at + 1
        handle = attach(agent.policy, k=1, rule="first", check=False)
        try:
            results = roll_out(agent, handle, branches, task, limit)
        finally:
            detach(agent.policy)
        return Branches(
            success=np.array([result.success for result in results]),
            steps=np.array([result.steps for result in results]),
            paths=[np.stack(path) for path in paths],
        )


def _bring(one: Episode, actions: Sequence[Array], history: int) -> None:
    """To the state after some actions."""
    observation, _ = one.env.reset(seed=one.initial_seed)
    one.history = deque([observation], maxlen=history)
    for action in actions:
        observation, *_ = one.env.step(action)
        one.history.append(observation)
        one.steps += 1


def _all_candidates(agent: Agent, one: Episode, task: str, k: int, seed: int) -> Array:
    """(K, T, D) the candidates of a round drawn again, in the environment's units: row j of a batch chooses candidate j."""
    handle = attach(agent.policy, k=k, rule=_own_row, check=False)
    try:
        with handle.seeded([seed] * k):
            return agent.plan([one.history] * k, [task] * k)
    finally:
        detach(agent.policy)


def _own_row(round: Round) -> int:
    return min(round.row, len(round.chunks) - 1)  # fewer are left if some were not finite
