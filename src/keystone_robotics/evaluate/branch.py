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

from keystone_robotics.attach import attach, detach
from keystone_robotics.environments import find_benchmark
from keystone_robotics.environments.benchmark import Array
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.results import RoundRecord
from keystone_robotics.evaluate.rollout import Episode, execute_chunk, roll_out
from keystone_robotics.handle import RoundEvent
from keystone_robotics.policies import load_agent
from keystone_robotics.select import Round
from keystone_robotics.spec import Spec


@dataclass(frozen=True)
class Branches:
    """The candidates of one round and where each of them led.

    Attributes:
        success: (K,) whether the episode succeeded after each, the policy going on with one sample per round; never after one
            that is not finite, which is not executed.
        steps: (K,) of the whole episode after each.
        paths: for each candidate (n, 3) or (n, 2), where the hand was before and after every step of the chunk.
    """

    success: NDArray[np.bool_]
    steps: NDArray[np.int64]
    paths: list[Array]


class Brancher:
    """Branches rounds of episodes of one task; ``with Brancher(settings, arm, task) as brancher: …``.

    Args:
        settings: of the evaluation that the rounds are from.
        arm: that they are from.
        task: of the episodes.
    """

    def __init__(self, settings: EvaluationConfig, arm: Spec, task: str) -> None:
        self.settings, self.arm, self.task = settings, arm, task
        self.benchmark = find_benchmark(settings.env)
        self.agent = load_agent(settings.policy, settings.device)
        self.agent.fit(self.benchmark)
        self.agent.execute = arm.execute or settings.execute or self.agent.execute
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
        for one, chunk in zip(branches, self._all_candidates(branches[0], noise(at), rounds[at]), strict=True):
            follow(one)
            execute_chunk(one, chunk[: agent.execute], limit, follow)
            one.rounds = at + 1
        handle = attach(agent.policy, k=1, rule="first", check=False)
        try:
            results = roll_out(agent, handle, branches, task, limit)
        finally:
            detach(agent.policy)
        valid = rounds[at].labels >= 0
        return Branches(
            success=np.array([result.success for result in results]) & valid,
            steps=np.array([result.steps for result in results]),
            paths=[np.stack(path) for path in paths],
        )

    def _all_candidates(self, one: Episode, seed: int, record: RoundRecord) -> Array:
        """(K, T, D) the candidates of a round drawn again, in the environment's units: row j of a batch chooses candidate j.

        Raises:
            KeystoneError: if they are not those that were stored.
        """
        k = len(record.candidates)
        drawn: list[RoundEvent] = []
        positions = np.maximum(np.cumsum(record.labels >= 0) - 1, 0)  # a rule sees those only that are finite

        def own_row(round: Round) -> int:
            return int(positions[round.row])

        handle = attach(self.agent.policy, k=k, rule=own_row, temperature=self.arm.temperature, check=False)
        handle.subscribe(drawn.append)
        try:
            with handle.seeded([seed] * k):
                chunks = self.agent.plan([one.history] * k, [self.task] * k)
        finally:
            detach(self.agent.policy)
        again = drawn[-1].candidates[0].float().cpu().numpy()
        size = max(1.0, float(np.abs(record.candidates[np.isfinite(record.candidates)]).max(initial=1.0)))
        if not np.allclose(again, record.candidates, atol=1e-3 * size, equal_nan=True):
            raise KeystoneError(
                f"round {record.number} cannot be branched: drawn again, its candidates are not those that were stored "
                "(another policy, simulator or version?)"
            )
        return chunks


def _bring(one: Episode, actions: Sequence[Array], history: int) -> None:
    """To the state after some actions."""
    observation, _ = one.env.reset(seed=one.initial_seed)
    one.history = deque([observation], maxlen=history)
    for action in actions:
        observation, *_ = one.env.step(action)
        one.history.append(observation)
        one.steps += 1
