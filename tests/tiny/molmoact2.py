"""MolmoAct2 with a decoder of 2 layers, saved locally because LeRobot loads it strictly from a checkpoint."""

import dataclasses
import functools
from typing import Any

import torch
from lerobot.policies.molmoact2.configuration_molmoact2 import MolmoAct2Config
from lerobot.policies.molmoact2.modeling_molmoact2 import (
    HFMolmoAct2Config,
    MolmoAct2ForConditionalGeneration,
    MolmoAct2Policy,
)

from .common import ACTION_DIM, Batch, assets, features, seeded

IMAGE_START, IMAGE_END, IMAGE_PATCH = 5, 6, 7
FIRST_WORD = 20
VOCABULARY = 256
PATCH_SIZE = 8
PATCHES = 4
#: Until LeRobot 0.6.1 "model_dtype".
DTYPE = next(field.name for field in dataclasses.fields(MolmoAct2Config) if field.name in ("dtype", "model_dtype"))
MAX_ACTION_DIM = 32
"""LeRobot accepts no other width."""


@functools.cache
def checkpoint() -> str:
    """A directory with a tiny random MolmoAct2; an image is 2 x 2 patches, pooled to one token."""
    directory = assets() / "molmoact2"
    config = HFMolmoAct2Config(
        vit_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "image_default_input_size": (2 * PATCH_SIZE, 2 * PATCH_SIZE),
            "image_patch_size": PATCH_SIZE,
            "image_num_pos": PATCHES,
        },
        adapter_config={
            "vit_layers": (-1, -2),
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 64,
            "text_hidden_size": 32,
        },
        text_config={
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": VOCABULARY,
            "additional_vocab_size": 16,
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 256,
        },
        action_expert_config={
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "ffn_multiple_of": 16,
            "timestep_embed_dim": 16,
        },
        image_start_token_id=IMAGE_START,
        image_end_token_id=IMAGE_END,
        image_patch_id=IMAGE_PATCH,
        max_action_dim=MAX_ACTION_DIM,
        max_action_horizon=10,
    )
    with seeded(0):
        MolmoAct2ForConditionalGeneration(config).save_pretrained(directory)
    return str(directory)


def build(**overrides: Any) -> MolmoAct2Policy:
    """A MolmoAct2 with chunks of 10 steps, of which it returns 5; 6 of 32 action dims are real."""
    settings = {
        **features(),
        "device": "cpu",
        "checkpoint_path": checkpoint(),
        DTYPE: "float32",
        "inference_action_mode": "continuous",
        "chunk_size": 10,
        "n_action_steps": 5,
        "num_inference_steps": 4,
    }
    return MolmoAct2Policy(MolmoAct2Config(**{**settings, **overrides}))


def batch(batch_size: int, seed: int) -> Batch:
    """What MolmoAct2's processor emits: an image token, then words that stand for instruction and state."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(FIRST_WORD, VOCABULARY, (batch_size, 8), generator=generator)
    ids = torch.cat([torch.tensor([[IMAGE_START, IMAGE_PATCH, IMAGE_END]] * batch_size), words], dim=1)
    pixels = torch.rand(batch_size, PATCHES, 3 * PATCH_SIZE * PATCH_SIZE, generator=generator)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": (ids == IMAGE_PATCH).long(),
        "pixel_values": 2 * pixels - 1,
        "image_token_pooling": torch.arange(PATCHES).repeat(batch_size, 1),
        "image_grids": torch.tensor([[1, 1, 0, 0]] * batch_size),
        "image_num_crops": torch.ones(batch_size, dtype=torch.long),
        "action_dim_is_pad": (torch.arange(MAX_ACTION_DIM) >= ACTION_DIM).repeat(batch_size, 1),
    }
