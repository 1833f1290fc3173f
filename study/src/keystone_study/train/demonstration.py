"""What an expert leaves behind: one episode, as a policy is trained on it."""

from __future__ import annotations

from typing import NamedTuple

from keystone_robotics.environments.benchmark import Array


class Demonstration(NamedTuple):
    """One episode of L steps; row t holds what was seen before step t and what was done in it.

    Attributes:
        agent_pos: (L, P) float32, the robot's own state.
        environment_state: (L, O) float32, everything as numbers.
        actions: (L, A) float32, in the environment's units.
        success: whether the task was done at the end.
    """

    agent_pos: Array
    environment_state: Array
    actions: Array
    success: bool
