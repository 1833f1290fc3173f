"""Counterfactual rollouts: every candidate of a stored round, executed to the end of the episode."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from keystone_robotics.attachment import attach, detach
from keystone_robotics.environments import find_benchmark
from keystone_robotics.environments.benchmark import Array
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.rollout import LiveEpisode, execute_chunk, roll_out
from keystone_robotics.handle import RoundEvent
from keystone_robotics.policies import load_agent
from keystone_robotics.records import RoundRecord
from keystone_robotics.select import Round
from keystone_robotics.spec import Spec


@dataclass(frozen=True)
class Branches:
    """The outcome of each candidate of one round.

    Attributes:
        success: (K,) whether the episode succeeded after each candidate, continued with one sample per round; False for
            candidates that are not finite, which are not executed.
        steps: (K,) environment steps of the whole episode after each candidate.
        paths: for each candidate (n, 3) or (n, 2), position of the end effector before and after every step of the chunk.
    """

    success: NDArray[np.bool_]
    steps: NDArray[np.int64]
    paths: list[Array]


class Brancher:
    """Branches stored rounds of one task; ``with Brancher(settings, arm, task) as brancher: …``.

    Args:
        settings: of the evaluation that stored the rounds.
        arm: of the rounds.
        task: of the rounds.
    """

    def __init__(self, settings: EvaluationConfig, arm: Spec, task: str) -> None:
        self.settings, self.arm, self.task = settings, arm, task
        self.benchmark = find_benchmark(settings.env, settings.max_steps)
        self.agent = load_agent(settings.policy, settings.device, settings.trust_remote_code)
        self.agent.fit(self.benchmark)
        self.agent.execute = arm.most_steps or settings.execute or self.agent.execute
        self._envs: list[gymnasium.Env[Any, Any]] = []

    def __enter__(self) -> Brancher:
        return self

    def __exit__(self, *_: object) -> None:
        for env in self._envs:
            env.close()

    def branch(self, repeat: int, episode: int, rounds: Sequence[RoundRecord], at: int) -> Branches:
        """Execute each candidate of a stored round, then continue with one sample per round until the episode ends.

        The simulator reaches the round by replaying the stored actions. All branches use the same noise afterwards, so that
        they differ in the candidate alone.

        Args:
            repeat: repeat of the episode.
            episode: number of the episode.
            rounds: all stored rounds of the episode.
            at: number of the round to branch.
        """
        agent, task, k = self.agent, self.task, len(rounds[at].candidates)
        limit = self.settings.max_steps or self.benchmark.max_steps(task)
        noise = partial(self.settings.noise_seed, repeat, task, episode)
        while len(self._envs) < k:
            self._envs.append(self.benchmark.make(task))
        branches = [LiveEpisode(row, self._envs[row], self.settings.initial_seed(episode), noise) for row in range(k)]
        paths: list[list[Array]] = [[] for _ in range(k)]

        def follow(one: LiveEpisode) -> None:
            paths[one.number].append(np.asarray(one.history[-1]["agent_pos"], np.float32)[:3])

        for one in branches:
            _replay(one, [action for record in rounds[:at] for action in record.actions], agent.history)
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

    def _all_candidates(self, one: LiveEpisode, seed: int, record: RoundRecord) -> Array:
        """(K, T, D) the candidates of a round, sampled again, in the environment's units: row j of a batch selects candidate j.

        Raises:
            KeystoneError: if they differ from the stored ones.
        """
        k = len(record.candidates)
        drawn: list[RoundEvent] = []
        positions = np.maximum(np.cumsum(record.labels >= 0) - 1, 0)  # a rule sees only finite candidates

        def own_row(round: Round) -> int:
            return int(positions[round.row])

        arm = self.arm
        handle = attach(self.agent.policy, k=k, rule=own_row, steps=arm.steps, temperature=arm.temperature, check=False)
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
                f"round {record.number} cannot be branched: sampled again, its candidates differ from the stored ones (another "
                "policy, simulator or version?)"
            )
        return chunks


def _replay(one: LiveEpisode, actions: Sequence[Array], history: int) -> None:
    """Reset the environment and execute stored actions."""
    observation, _ = one.env.reset(seed=one.initial_seed)
    one.history = deque([observation], maxlen=history)
    for action in actions:
        observation, *_ = one.env.step(action)
        one.history.append(observation)
        one.steps += 1
