"""A LeRobot policy with its processors, asked for whole chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keystone_robotics.environments.benchmark import Array, Benchmark, Observation
from keystone_robotics.environments.lerobot import INSTRUCTION, LeRobotBenchmark
from keystone_robotics.errors import KeystoneError
from keystone_robotics.policies.agent import Agent
from keystone_robotics.policies.lerobot_checkpoint import load_policy

ACTION, IMAGES = "action", "observation.images"


class LeRobotAgent(Agent):
    """A LeRobot policy with its processors, as in LeRobot's evaluation.

    Every round starts with empty queues, which are filled with the last observations of each episode for policies that use a
    history, so that any subset of episodes can be planned in any round.

    Args:
        path: folder or hub name of a checkpoint.
        device: of the policy; None for its checkpoint's.
        tasks: that it was trained on, if known.
        trust_remote_code: see `load_policy`.
    """

    def __init__(
        self, path: str, device: str | None, tasks: tuple[str, ...] = (), trust_remote_code: bool = False
    ) -> None:
        self.policy, self._preprocess, self._postprocess = load_policy(path, device, trust_remote_code)
        self._config = config = self.policy.config
        if config.type == "lingbot_va":
            raise KeystoneError(
                f"{path}: {config.type} keeps a video of one episode between rounds; episodes cannot be batched"
            )
        self.policy.reset()
        self.history = int(config.n_obs_steps)
        self.tasks = tuple(tasks)
        self._from_env: Any = None
        self._to_env: Any = None
        self._action_dim: int | None = None

    @property
    def execute(self) -> int:
        return int(self._config.n_action_steps)

    @execute.setter
    def execute(self, steps: int) -> None:
        longest = _longest(self._config)
        if not 1 <= steps <= longest:
            raise KeystoneError(f"execute={steps}: this {self._config.type} policy plans {longest} steps")
        self._config.n_action_steps = steps

    def plan(self, histories: Sequence[Sequence[Observation]], tasks: Sequence[str]) -> Array:
        def observed(age: int) -> dict[str, Any]:
            return self._named([history[max(len(history) - age, 0)] for history in histories], tasks)

        plans = self.plan_batches(observed)
        if self._action_dim not in (None, plans.shape[-1]):
            raise KeystoneError(
                f"the policy's actions have {plans.shape[-1]} dimensions, the environment's {self._action_dim}: it was trained "
                "for another one"
            )
        return plans

    def plan_batches(self, observed: Callable[[int], dict[str, Any]]) -> Array:
        """(N, T, D) chunks for N observations with LeRobot's keys, such as frames of a dataset.

        Args:
            observed: the batch of observations by age: 1 is the newest, `history` the oldest.
        """
        queues = self._empty_queues()
        with torch.inference_mode(), self._precision():
            # Oldest first. The newest is last even without a history: relative actions start from the last state seen.
            for age in range(self.history if queues else 1, 0, -1):
                batch = dict(self._preprocess(observed(age)))
                batch.pop(ACTION, None)  # None outside of training
                if IMAGES in queues:
                    batch[IMAGES] = torch.stack([batch[name] for name in self._config.image_features], dim=-4)
                _fill(queues, batch)
            chunk: Tensor = self.policy.predict_action_chunk(batch)
            # Step by step, because post-processors take (N, D).
            steps = [self._in_env_units(chunk[:, step]) for step in range(chunk.shape[1])]
        plans: Array = torch.stack(steps, dim=1).float().cpu().numpy()
        return plans

    def in_env_units(self, candidates: Array, observation: Observation) -> Array | None:
        if getattr(self._config, "use_relative_actions", False):
            return None  # they begin at the state of the last observation that the processors have seen
        k, steps, _ = candidates.shape
        with torch.inference_mode():
            rows = torch.from_numpy(candidates.reshape(k * steps, -1)).to(self._config.device)
            found: Array = self._in_env_units(rows).float().cpu().numpy()
        return found.reshape(k, steps, -1)

    def example(self) -> Observation:
        """Inputs with LeRobot's names (``observation.state``); images are (H, W, 3) uint8, of the size of the configuration."""
        observation: Observation = {}
        for name, feature in self._config.input_features.items():
            if name in self._config.image_features:
                channels, height, width = feature.shape
                observation[name] = np.full((height, width, channels), 127, np.uint8)
            else:
                observation[name] = np.zeros(feature.shape, np.float32)
        return observation

    def fit(self, benchmark: Benchmark) -> None:
        """Make LeRobot's processors of the environment, and compare its observations with the policy's inputs."""
        self._from_env = self._to_env = None
        if isinstance(benchmark, LeRobotBenchmark):
            from lerobot.envs.factory import make_env_pre_post_processors

            self._from_env, self._to_env = make_env_pre_post_processors(benchmark.config, self._config)
        env = benchmark.make(benchmark.tasks()[0])
        try:
            assert env.action_space.shape is not None
            self._action_dim = env.action_space.shape[0]
            observation = env.observation_space.sample()
        finally:
            env.close()
        self._check(benchmark.name, self._named([observation], [""]))

    def _check(self, name: str, given: Mapping[str, Any]) -> None:
        renamed = {new: old for step in self._preprocess.steps for old, new in getattr(step, "rename_map", {}).items()}
        shapes = {key: tuple(value.shape[1:]) for key, value in given.items() if isinstance(value, Tensor)}
        shapes.update({new: shapes[old] for new, old in renamed.items() if old in shapes})
        images = set(self._config.image_features)
        numbers = {
            key: tuple(feature.shape) for key, feature in self._config.input_features.items() if key not in images
        }
        there = f"{name} gives {', '.join(f'{key} {shape}' for key, shape in sorted(shapes.items()))}"
        for key, shape in numbers.items():
            padded = shape == (getattr(self._config, "max_state_dim", None),)
            if shapes.get(key) != shape and not (key in shapes and padded):
                raise KeystoneError(f"the policy takes {key} of shape {shape}, but {there}")
        # Policies with queues stack all images; the others accept missing ones if at least one is there.
        missing = images - set(shapes)
        if missing and (IMAGES in (getattr(self.policy, "_queues", None) or {}) or missing == images):
            raise KeystoneError(f"the policy takes {', '.join(sorted(missing))}, but {there}")

    def _empty_queues(self) -> dict[str, Any]:
        """The policy's observation queues, emptied; none if it takes only the newest observation.

        Not with ``policy.reset()``, which would also reset rules that use the previous chunk.
        """
        queues: dict[str, Any] = getattr(self.policy, "_queues", None) or {}
        for queue in queues.values():
            queue.clear()
        return {name: queue for name, queue in queues.items() if name != ACTION}

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if not self._config.use_amp:
            return contextlib.nullcontext()
        return torch.autocast(torch.device(self._config.device).type)

    def _named(self, rows: Sequence[Observation], tasks: Sequence[str]) -> dict[str, Any]:
        """N observations as one batch with LeRobot's keys; images are (N, 3, H, W) in [0, 1]."""
        from lerobot.envs.utils import preprocess_observation

        stacked = _stack(rows)
        # Inputs may have the names of the policy's configuration already, as clients of a server send them.
        named = {name: stacked.pop(name) for name in self._config.input_features if name in stacked}
        batch: dict[str, Any] = preprocess_observation(stacked)
        for name, value in named.items():
            batch[name] = self._image(name, value) if name in self._config.image_features else _tensor(value)
        batch[INSTRUCTION] = [row.get(INSTRUCTION, task) for row, task in zip(rows, tasks, strict=True)]
        return batch if self._from_env is None else dict(self._from_env(batch))

    def _image(self, name: str, images: Array) -> Tensor:
        """(N, H, W, 3) uint8 as (N, 3, H, W) in [0, 1], resized bilinearly to the size of the configuration."""
        _, height, width = self._config.image_features[name].shape
        pixels = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 255
        if pixels.shape[2:] == (height, width):
            return pixels.contiguous()
        return torch.nn.functional.interpolate(pixels, size=(height, width), mode="bilinear", align_corners=False)

    def _in_env_units(self, action: Tensor) -> Tensor:
        """(N, D) one step of the chunks, in the environment's units."""
        action = self._postprocess(action)
        return action if self._to_env is None else self._to_env({ACTION: action})[ACTION]


def _tensor(value: Array) -> Tensor:
    return torch.from_numpy(np.asarray(value)).float()


def _longest(config: Any) -> int:
    """Maximum number of steps of a chunk that can be executed."""
    for name in ("chunk_size", "action_horizon"):
        if hasattr(config, name):
            return int(getattr(config, name))
    return int(config.horizon - config.n_obs_steps + 1)  # its chunk starts at the oldest observation


def _fill(queues: dict[str, Any], batch: dict[str, Any]) -> None:
    from lerobot.policies.utils import populate_queues

    populate_queues(queues, batch)


def _stack(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Stack the arrays of N observations along a new first axis, recursively; strings are left out."""
    stacked: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, Mapping):
            stacked[name] = _stack(values)
        elif isinstance(first, np.ndarray | np.number):
            stacked[name] = np.stack(values)
    return stacked
