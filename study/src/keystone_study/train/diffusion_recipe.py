"""Training of LeRobot's Diffusion Policy, on states, small enough for one core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.expert import Expert
from keystone_study.train.windows import OBSERVATION_FLOOR, Statistics, Windows, cut_windows, statistics

#: What differs from LeRobot's defaults. The network predicts the clean chunk, not the noise: with ten steps of DDIM and
#: actions that are often at the end of their range, samples then stay inside that range.
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "push_to_hub": False,
    "n_obs_steps": 1,
    "horizon": 16,
    "n_action_steps": 8,
    "down_dims": (64, 128),
    "kernel_size": 3,
    "diffusion_step_embed_dim": 64,
    "noise_scheduler_type": "DDIM",
    "num_inference_steps": 10,
    "prediction_type": "sample",
}


class DiffusionRecipe:
    """A `Learner` around `lerobot.policies.diffusion.DiffusionPolicy`; what it saves is an ordinary LeRobot checkpoint.

    Actions are learnt as the environment takes them. LeRobot can also tell positions relative to the robot's, but its own loop
    (``select_action``) then adds the robot's position now, not when the chunk was planned: only whole chunks come out right.
    """

    learning_rate = 1e-3
    batch = 64  # an iteration costs fifteen times one of the flow policy's
    packages: tuple[str, ...] = ("lerobot", "diffusers")

    def __init__(
        self, demonstrations: Sequence[Demonstration], expert: Expert, seed: int, settings: dict[str, Any] | None = None
    ) -> None:
        settings = SETTINGS if settings is None else settings
        windows = cut_windows(demonstrations, settings["horizon"], expert.motion)
        policy_class, config = _configure(windows, settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module = policy_class(config)
        self._processors = _make_processors(config, windows)
        self._batch = self._prepare(windows)
        self.examples = len(windows.chunks)

    def _prepare(self, windows: Windows) -> dict[str, Tensor]:
        """All windows as the policy takes them: normalised by LeRobot's own processor, with a dimension for the history."""
        preprocess = self._processors[0]
        batch = preprocess(
            {
                "observation.state": torch.from_numpy(windows.agent_pos)[:, None],
                "observation.environment_state": torch.from_numpy(windows.environment_state)[:, None],
                "action": torch.from_numpy(windows.chunks),
            }
        )
        prepared = {name: batch[name] for name in ("observation.state", "observation.environment_state", "action")}
        return {**prepared, "action_is_pad": torch.zeros(windows.chunks.shape[:2], dtype=torch.bool)}

    def loss(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        batch = {name: values[rows] for name, values in self._batch.items()}
        seed = torch.randint(2**62, (), generator=generator)
        with torch.random.fork_rng(devices=[]):  # the policy draws from torch's global generator
            torch.manual_seed(int(seed))
            loss: Tensor = self.module(batch)[0]
        return loss

    def save(self, folder: Path) -> None:
        """Write config.json, model.safetensors and both processors."""
        self.module.save_pretrained(folder)
        for processor in self._processors:
            processor.save_pretrained(folder)


def _configure(windows: Windows, settings: dict[str, Any]) -> tuple[Any, Any]:
    """LeRobot's class and its configuration."""
    try:
        from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
        from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
        from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
    except ImportError as error:
        raise KeystoneError(
            f"--policy diffusion is LeRobot's ({error}): pip install 'keystone-robotics[lerobot]'"
        ) from error

    def feature(kind: Any, values: Any) -> Any:
        return PolicyFeature(type=kind, shape=(values.shape[-1],))

    config = DiffusionConfig(
        input_features={
            "observation.state": feature(FeatureType.STATE, windows.agent_pos),
            "observation.environment_state": feature(FeatureType.ENV, windows.environment_state),
        },
        output_features={"action": feature(FeatureType.ACTION, windows.chunks)},
        normalization_mapping={
            "STATE": NormalizationMode.MEAN_STD,
            "ENV": NormalizationMode.MEAN_STD,
            "ACTION": NormalizationMode.MIN_MAX,  # samples are clipped to -1 ... 1
        },
        **settings,
    )
    return DiffusionPolicy, config


def _make_processors(config: Any, windows: Windows) -> tuple[Any, Any]:
    """LeRobot's processors, which normalise with the (floored) statistics of the windows."""
    from lerobot.policies.factory import make_pre_post_processors

    def tensors(found: Statistics) -> dict[str, Tensor]:
        return {name: torch.from_numpy(values) for name, values in found._asdict().items()}

    stats = {
        "observation.state": tensors(statistics(windows.agent_pos, OBSERVATION_FLOOR)),
        "observation.environment_state": tensors(statistics(windows.environment_state, OBSERVATION_FLOOR)),
        "action": tensors(statistics(windows.chunks, OBSERVATION_FLOOR)),
    }
    preprocess, postprocess = make_pre_post_processors(config, dataset_stats=stats)
    return preprocess, postprocess
