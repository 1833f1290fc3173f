"""EO1 on a Qwen2.5-VL of 2 layers, saved locally because LeRobot loads it with `from_pretrained`."""

import functools
from typing import Any

import torch
from lerobot.policies.eo1.configuration_eo1 import EO1Config
from lerobot.policies.eo1.modeling_eo1 import EO1Policy
from lerobot.utils.constants import OBS_STATE
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from .common import STATE_DIM, Batch, assets, features, seeded, take_row

IMAGE_TOKEN, VIDEO_TOKEN, VISION_START, VISION_END, STATE_TOKEN, ACTION_TOKEN = range(5, 11)
FIRST_WORD = 20
VOCABULARY = 256
PATCH_SIZE = 8
PATCHES = 16
MERGED_PATCHES = 4
CHUNK = 8


@functools.cache
def qwen2_5_vl() -> str:
    """A directory with a tiny random Qwen2.5-VL."""
    directory = assets() / "qwen2_5_vl"
    config = Qwen2_5_VLConfig(
        image_token_id=IMAGE_TOKEN,
        video_token_id=VIDEO_TOKEN,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        text_config={
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 512,
            "rope_scaling": {"mrope_section": [4, 2, 2], "rope_type": "default"},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 32,
            "fullatt_block_indexes": [1],
            "in_channels": 3,
        },
    )
    with seeded(0):
        Qwen2_5_VLForConditionalGeneration(config).save_pretrained(directory)
    return str(directory)


def build(**overrides: Any) -> EO1Policy:
    """An EO1 with chunks of 8 steps, 4 of them executed, 6 of 8 action dims real."""
    settings = {
        **features(),
        "device": "cpu",
        "vlm_base": qwen2_5_vl(),
        "dtype": "float32",
        "max_state_dim": 8,
        "max_action_dim": 8,
        "chunk_size": CHUNK,
        "n_action_steps": 4,
        "num_denoise_steps": 4,
    }
    return EO1Policy(EO1Config(**{**settings, **overrides}))


def batch(batch_size: int, seed: int) -> Batch:
    """What EO1's processor emits: image, instruction, one state token and a place for each action."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(FIRST_WORD, VOCABULARY, (batch_size, 6), generator=generator)
    image = [VISION_START, *[IMAGE_TOKEN] * MERGED_PATCHES, VISION_END]
    placeholders = [STATE_TOKEN, *[ACTION_TOKEN] * CHUNK]
    ids = torch.cat([torch.tensor([image] * batch_size), words, torch.tensor([placeholders] * batch_size)], dim=1)
    values_per_patch = 3 * 2 * PATCH_SIZE * PATCH_SIZE
    return {
        OBS_STATE: torch.randn(batch_size, STATE_DIM, generator=generator),
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == IMAGE_TOKEN).int(),
        "pixel_values": torch.randn(batch_size * PATCHES, values_per_patch, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * batch_size),
        "state_token_id": STATE_TOKEN,
        "action_token_id": ACTION_TOKEN,
    }


def row(batch: Batch, index: int) -> Batch:
    """One row; the patches of row `index` lie together in `pixel_values`."""
    pixels = batch["pixel_values"][index * PATCHES : (index + 1) * PATCHES]
    return {**take_row(batch, index), "pixel_values": pixels}
