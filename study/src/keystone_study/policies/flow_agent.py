"""The compact flow-matching policy in an environment with states."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from keystone_robotics.environments.benchmark import Array, Observation
from keystone_robotics.errors import KeystoneError
from keystone_robotics.policies.agent import Agent
from keystone_study.policies.flow import FlowPolicy


class FlowAgent(Agent):
    """Observations in, chunks of absolute actions out."""

    policy: FlowPolicy

    def __init__(self, policy: FlowPolicy, tasks: Sequence[str] = ()) -> None:
        self.policy = policy
        self.tasks = tuple(tasks)

    @property
    def execute(self) -> int:
        return self.policy.config.n_action_steps

    @execute.setter
    def execute(self, steps: int) -> None:
        if not 1 <= steps <= self.policy.config.horizon:
            raise KeystoneError(f"execute={steps}: this policy plans {self.policy.config.horizon} steps")
        self.policy.config = dataclasses.replace(self.policy.config, n_action_steps=steps)

    def plan(self, histories: Sequence[Sequence[Observation]], tasks: Sequence[str]) -> Array:
        now = [history[-1] for history in histories]
        states = np.stack([observation["environment_state"] for observation in now]).astype(np.float32)
        if states.shape[1] != self.policy.config.observation_dim:
            raise KeystoneError(
                f"this policy takes observations of {self.policy.config.observation_dim} numbers, and the environment gives "
                f"{states.shape[1]}: it was trained for another one"
            )
        with torch.no_grad():
            chunks: Array = self.policy(torch.from_numpy(states).to(self.policy.action_mean.device)).cpu().numpy()
        return self._absolute(chunks, now)

    def in_env_units(self, candidates: Array, observation: Observation) -> Array:
        return self._absolute(candidates.copy(), [observation])

    def _absolute(self, chunks: Array, observations: Sequence[Observation]) -> Array:
        """Add the robot's position to the dimensions that are relative to it, in place."""
        dims = list(self.policy.config.relative)
        if dims:
            chunks[..., dims] += np.stack([observation["agent_pos"] for observation in observations])[:, None, dims]
        return chunks

    def example(self) -> Observation:
        config = self.policy.config
        observation = {"environment_state": np.zeros(config.observation_dim, np.float32)}
        if config.relative:
            observation["agent_pos"] = np.zeros(max(config.relative) + 1, np.float32)
        return observation
