"""The compact flow-matching policy in an environment with states or images."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.policies.agent import Agent
from keystone_study.policies.flow import FlowPolicy

if TYPE_CHECKING:  # a server needs no gymnasium
    from keystone_robotics.environments.benchmark import Array, Observation


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
        rows = torch.from_numpy(np.stack([self._row(observation) for observation in now]))
        with torch.no_grad():
            chunks: Array = self.policy(rows.to(self.policy.action_mean.device)).cpu().numpy()
        return self._absolute(chunks, now)

    def _row(self, observation: Observation) -> Array:
        """(O,) what the policy takes, see `FlowConfig.inputs`."""
        config = self.policy.config
        keys = ("agent_pos", "pixels") if config.image else ("environment_state",)
        if missing := [key for key in keys if key not in observation]:
            raise KeystoneError(
                f"this policy takes {' and '.join(keys)}, and the environment gives no {' and no '.join(missing)}: it was "
                "trained for another one"
            )
        parts = [np.asarray(observation[key], np.float32) for key in keys]
        row = np.concatenate([parts[0], *(image.transpose(2, 0, 1).ravel() for image in parts[1:])])
        if len(row) != config.inputs:
            raise KeystoneError(
                f"this policy takes observations of {config.inputs} numbers, and the environment gives {len(row)}: it was "
                "trained for another one"
            )
        return row

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
        if config.image:
            return {
                "agent_pos": np.zeros(config.observation_dim, np.float32),
                "pixels": np.zeros((config.image, config.image, 3), np.uint8),
            }
        observation = {"environment_state": np.zeros(config.observation_dim, np.float32)}
        if config.relative:
            observation["agent_pos"] = np.zeros(max(config.relative) + 1, np.float32)
        return observation
