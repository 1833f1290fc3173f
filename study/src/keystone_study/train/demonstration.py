"""One episode of an expert, as a policy is trained on it."""

from __future__ import annotations

from typing import NamedTuple

from keystone_robotics.environments.benchmark import Array


class Demonstration(NamedTuple):
    """One episode of L steps; row t holds the observation before step t and the action of step t.

    Attributes:
        agent_pos: (L, P) float32, the robot's own state.
        environment_state: (L, O) float32, the full state.
        actions: (L, A) float32, in the environment's units.
        success: whether the task was solved.
    """

    agent_pos: Array
    environment_state: Array
    actions: Array
    success: bool
