"""PushT: a round finger pushes a T-shaped block onto its goal, with gym-pusht's physics; observations are states or images."""

from __future__ import annotations

import os
import warnings
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Array, Benchmark, Observation
from keystone_robotics.errors import KeystoneError, nearest_name

#: Width and height of the table, and so the largest coordinate of an action, in pixels.
TABLE = 512.0

#: Width and height of a rendered image in pixels.
IMAGE = 680.0

#: Width and height of an observed image in pixels.
PIXELS = 96

#: Goal pose of the T: x and y of its origin (the middle of the bar's outer edge) in pixels, angle in radians.
GOAL_POSE = np.array([256.0, 256.0, np.pi / 4])

#: (8, 2): the corners of the T in its own frame, in pixels; gym-pusht's keypoints in its order. The y axis points down::
#:
#:     0───────────────1
#:     3───4       5───2      corners 4 and 5 are where the stem meets the bar
#:         │       │
#:         7───────6
CORNERS = np.array(
    [(-60, 0), (60, 0), (60, 30), (-60, 30), (-15, 30), (15, 30), (15, 120), (-15, 120)], dtype=np.float64
)


def corners_at(pose: NDArray[np.float64]) -> NDArray[np.float64]:
    """The corners (..., 8, 2) in pixels of a T at ``pose`` (..., 3): x, y in pixels, angle in radians.

    >>> corners_at(np.array([100.0, 50.0, np.pi / 2]))[1].round()
    array([100., 110.])
    """
    cos, sin = np.cos(pose[..., 2, None]), np.sin(pose[..., 2, None])
    x = cos * CORNERS[:, 0] - sin * CORNERS[:, 1] + pose[..., 0, None]
    y = sin * CORNERS[:, 0] + cos * CORNERS[:, 1] + pose[..., 1, None]
    return np.stack([x, y], axis=-1)


def simulator() -> Any:
    """gym-pusht's environment class, imported on first use: it brings pygame, OpenCV and shapely along."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pygame about pkg_resources
            from gym_pusht.envs.pusht import PushTEnv as Simulator
    except ImportError as error:
        raise KeystoneError('PushT needs gym-pusht: pip install "keystone-robotics[eval]"') from error
    return Simulator


class PushTEnv(gymnasium.Env[Observation, NDArray[Any]]):
    """Push the T onto its goal until more than 95 % of the goal is covered.

    Observations:
        agent_pos: (2,) float32, x and y of the finger in pixels.
        environment_state: (18,) float32, the finger's x and y, then x and y of each of the T's corners (``CORNERS``) in pixels.
        pixels: (96, 96, 3) uint8, gym-pusht's image, instead of the state if made with ``pixels=True``.

    The action (2,) is the point in pixels the finger is driven to for a tenth of a second; beyond the table it is clipped to
    its edge. The reward is gym-pusht's: coverage over 0.95, at most 1.

    >>> env = PushTEnv()
    >>> observation, info = env.reset(seed=0)
    >>> observation["environment_state"].shape, info["initial_state"].shape
    ((18,), (10,))
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (gymnasium's own form)

    def __init__(self, render_mode: str | None = None, pixels: bool = False) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', not {render_mode!r}")
        # gym-pusht's rgb_array draws on a surface in memory: no display is opened, whatever render_mode is
        self._simulator = simulator()(obs_type="state", render_mode="rgb_array")
        self.render_mode = render_mode
        self.pixels = pixels
        # Unbounded, because a T that starts across a wall has corners off the table, and the finger can overshoot
        state = gymnasium.spaces.Box(-np.inf, np.inf, (18,), np.float32)
        image = gymnasium.spaces.Box(0, 255, (PIXELS, PIXELS, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "agent_pos": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
                **({"pixels": image} if pixels else {"environment_state": state}),
            }
        )
        self.action_space = gymnasium.spaces.Box(0.0, TABLE, (2,), np.float32)

    def physics_state(self) -> NDArray[np.float64]:
        """Everything that moves, (10,), in pixels, radians and seconds.

        Finger x, y, velocity x, y; T x, y, angle, velocity x, y, angular velocity.
        """
        finger, block = self._simulator.agent, self._simulator.block
        return np.array(
            [*finger.position, *finger.velocity, *block.position, block.angle, *block.velocity, block.angular_velocity]
        )

    def observation(self) -> Observation:
        """The current observation."""
        state = self.physics_state()
        agent_pos: Array = state[:2].astype(np.float32)
        if self.pixels:
            return {"agent_pos": agent_pos, "pixels": self._simulator._render()}
        corners: Array = corners_at(state[4:7]).reshape(-1).astype(np.float32)
        return {"agent_pos": agent_pos, "environment_state": np.concatenate([agent_pos, corners])}

    def image_of(self, environment_state: Array) -> NDArray[np.uint8]:
        """The image (96, 96, 3) of another state (18,); leaves finger and T there.

        >>> env = PushTEnv()
        >>> env.image_of(env.reset(seed=0)[0]["environment_state"]).shape
        (96, 96, 3)
        """
        corners = environment_state[2:].reshape(-1, 2).astype(np.float64)
        along = corners[1] - corners[0]
        sim = self._simulator
        sim.agent.position = environment_state[:2].tolist()
        sim.block.angle = float(np.arctan2(along[1], along[0]))
        sim.block.position = corners[:2].mean(0).tolist()
        for body in (sim.agent, sim.block):
            sim.space.reindex_shapes_for_body(body)
        image: NDArray[np.uint8] = sim._render()
        return image

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        # gym-pusht builds a new space at each reset, so that nothing of the last episode is left, except the mark it draws
        self._simulator._last_action = None
        self._simulator.reset(seed=seed, options=options)
        return self.observation(), {"success": False, "initial_state": self.physics_state()}

    def step(self, action: NDArray[Any]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        target = np.asarray(action, dtype=np.float64)
        if target.shape != (2,) or not np.isfinite(target).all():
            # the physics would end the whole process on a NaN
            raise ValueError(f"an action is two finite numbers, the finger's target in pixels, not {action!r}")
        _, reward, _, _, info = self._simulator.step(np.clip(target, 0.0, TABLE))
        success = bool(info["is_success"])
        return self.observation(), float(reward), success, False, {"success": success, "coverage": info["coverage"]}

    def render(self) -> NDArray[np.uint8] | None:
        """An image (680, 680, 3) of bytes; None unless made with ``render_mode="rgb_array"``."""
        if self.render_mode is None:
            return None
        image: NDArray[np.uint8] = self._simulator.render()
        return image

    def close(self) -> None:
        self._simulator.close()


class PushT(Benchmark):
    """One task, ``pusht``; initial states as gym-pusht draws them."""

    name = "pusht"
    pixels = False

    def tasks(self) -> tuple[str, ...]:
        return ("pusht",)

    def make(self, task: str, render: bool = False) -> PushTEnv:
        self._check(task)
        return PushTEnv("rgb_array" if render else None, self.pixels)

    def max_steps(self, task: str) -> int:
        self._check(task)
        return 300

    def tool_path(self, chunks: Array, observation: Observation) -> tuple[Array, None]:
        now = np.broadcast_to(np.asarray(observation["agent_pos"], np.float32), (len(chunks), 1, 2))
        return np.concatenate([now, np.clip(chunks, 0, TABLE)], axis=1) * np.float32(IMAGE / TABLE), None

    def _check(self, task: str) -> None:
        if task not in self.tasks():
            raise ValueError(f"unknown PushT task {task!r}: {nearest_name(task, self.tasks())}")


class PushTPixels(PushT):
    """PushT from its image and the finger's position; the same initial states."""

    name = "pusht-pixels"
    pixels = True
