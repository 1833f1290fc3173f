"""Diffusion Policy with a narrow U-Net and a randomly initialised ResNet."""

from typing import Any

from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
from lerobot.utils.constants import OBS_STATE
from torch import Tensor

from .common import IMAGE, Batch, features


def build(**overrides: Any) -> DiffusionPolicy:
    """A Diffusion Policy with a horizon of 16 steps, of which 8 are executed from the second on."""
    settings = {
        **features(),
        "device": "cpu",
        "down_dims": (32, 64),
        "diffusion_step_embed_dim": 32,
        "spatial_softmax_num_keypoints": 8,
        "pretrained_backbone_weights": None,
        "crop_shape": None,
        "resize_shape": None,
        "horizon": 16,
        "n_obs_steps": 2,
        "n_action_steps": 8,
        "noise_scheduler_type": "DDIM",
        "num_inference_steps": 4,
    }
    return DiffusionPolicy(DiffusionConfig(**{**settings, **overrides}))


def predict(policy: DiffusionPolicy, batch: Batch) -> Tensor:
    """One chunk from the current observation, repeated to fill the history as `select_action` does."""
    policy.reset()
    repeats = policy.config.n_obs_steps
    history = {key: batch[key].unsqueeze(1) for key in (OBS_STATE, IMAGE)}
    history = {key: value.expand(-1, repeats, *value.shape[2:]) for key, value in history.items()}
    return policy.predict_action_chunk({**batch, **history})
