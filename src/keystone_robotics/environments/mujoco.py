"""What the environments in MuJoCo have in common: import, rendering, states, spaces of observations."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Array, Observation
from keystone_robotics.environments.graphics import OFF, choose_backend, no_graphics
from keystone_robotics.errors import KeystoneError


@contextlib.contextmanager
def importing(name: str, packages: str) -> Iterator[None]:
    """Within this block a simulator is imported, and with it MuJoCo."""
    choose_backend()
    try:
        yield
    except ImportError as error:
        raise KeystoneError(f"{name} is not installed ({error}): pip install {packages}") from error
    except Exception as error:  # MuJoCo loads OpenGL at import, and fails in many ways
        raise no_graphics(error) from error


class MuJoCoEnv(gymnasium.Env[Observation, NDArray[np.float32]]):
    """Base of one task: observations are ``agent_pos`` and ``environment_state``; ``sim`` is the simulator's own."""

    sim: Any

    def _set_spaces(self, actions: gymnasium.Space[Any], robot: int, state: int) -> None:
        self.action_space = actions
        sizes = {"agent_pos": robot, "environment_state": state}
        self.observation_space = gymnasium.spaces.Dict(
            {name: gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in sizes.items()}
        )

    def _image(self) -> NDArray[np.uint8]:
        """(height, width, 3)."""
        raise NotImplementedError

    def render(self) -> NDArray[np.uint8]:
        """(height, width, 3) view of the table."""
        if os.environ.get("MUJOCO_GL") == OFF:
            raise no_graphics("no OpenGL library was found")
        try:
            return self._image()
        except Exception as error:
            raise no_graphics(error) from error

    def close(self) -> None:
        self.sim.close()


def simulator_state(model: Any, data: Any) -> NDArray[np.float64]:
    """Everything that an episode follows from."""
    import mujoco

    everything = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, everything))
    mujoco.mj_getState(model, data, state, everything)
    return state


def hand_path(chunks: Array, observation: Observation, step: float, gripper: int) -> tuple[Array, NDArray[np.bool_]]:
    """`Benchmark.tool_path` of actions whose first three numbers move the hand, each by at most ``step`` metres."""
    hand = np.broadcast_to(np.asarray(observation["agent_pos"][:3], np.float32), (len(chunks), 1, 3))
    steps = step * np.clip(chunks[..., :3], -1, 1)
    closed = chunks[..., gripper] > 0
    path = np.concatenate([hand, hand + steps.cumsum(axis=1)], axis=1, dtype=np.float32)
    return path, np.concatenate([closed[:, :1], closed], axis=1)
