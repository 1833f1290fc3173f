"""Multi-task DiT on a local CLIP of 2 layers."""

import functools
from typing import Any

import torch
from lerobot.policies.multi_task_dit.configuration_multi_task_dit import MultiTaskDiTConfig
from lerobot.policies.multi_task_dit.modeling_multi_task_dit import MultiTaskDiTPolicy
from lerobot.policies.utils import populate_queues
from lerobot.utils.constants import OBS_IMAGES
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

from .common import IMAGE, Batch, assets, byte_tokenizer, features, seeded


@functools.cache
def clip() -> str:
    """A directory with a tiny random CLIP; LeRobot requires "clip" in its name."""
    directory = assets() / "clip"
    byte_tokenizer(directory)
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={
            **layers,
            "vocab_size": 512,
            "max_position_embeddings": 77,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        vision_config={**layers, "image_size": 64, "patch_size": 16},
        projection_dim=32,
    )
    with seeded(0):
        CLIPModel(config).save_pretrained(directory)
    return str(directory)


def build(**overrides: Any) -> MultiTaskDiTPolicy:
    """A multi-task DiT with a horizon of 16 steps, of which 8 are executed from the second on."""
    settings = {
        **features(),
        "device": "cpu",
        "vision_encoder_name": clip(),
        "text_encoder_name": clip(),
        "image_resize_shape": None,
        "image_crop_shape": None,
        "hidden_dim": 64,
        "num_layers": 2,
        "num_heads": 4,
        "horizon": 16,
        "n_obs_steps": 2,
        "n_action_steps": 8,
        "objective": "flow_matching",
        "num_integration_steps": 4,
    }
    return MultiTaskDiTPolicy(MultiTaskDiTConfig(**{**settings, **overrides}))


def predict(policy: MultiTaskDiTPolicy, batch: Batch) -> Tensor:
    """One chunk; `predict_action_chunk` only works on queues that hold the observation already."""
    policy.reset()
    batch = {**batch, OBS_IMAGES: torch.stack([batch[IMAGE]], dim=1)}
    policy._queues = populate_queues(policy._queues, batch)
    return policy.predict_action_chunk(batch)
