"""GR00T N1.7 on a Qwen3-VL of 3 layers: LeRobot hard-codes the sizes, so they are patched while building."""

from typing import Any

import torch
from lerobot.policies.groot import groot_n1_7, modeling_groot
from lerobot.policies.groot.configuration_groot import GrootConfig
from transformers import Qwen3VLConfig

from .common import Batch, features, patched, take_row

IMAGE_TOKEN, VIDEO_TOKEN, VISION_START, VISION_END = 5, 6, 7, 8
PATCH_SIZE = 8
PATCHES = 16
MERGED_PATCHES = 4
MAX_DIM = 16
CHUNK = 10


def qwen_config() -> Qwen3VLConfig:
    """A Qwen3-VL of 3 text layers and 2 vision layers."""
    return Qwen3VLConfig(
        image_token_id=IMAGE_TOKEN,
        video_token_id=VIDEO_TOKEN,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        tie_word_embeddings=True,
        text_config={
            "model_type": "qwen3_vl_text",
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 256,
            "max_position_embeddings": 512,
            "rope_theta": 10000,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [4, 2, 2],
                "rope_type": "default",
            },
        },
        vision_config={
            "model_type": "qwen3_vl",
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "num_position_embeddings": 64,
            "out_hidden_size": 64,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "deepstack_visual_indexes": [0],
            "in_channels": 3,
        },
    )


def create_model(policy: modeling_groot.GrootPolicy, blocks: int = 4) -> groot_n1_7.GR00TN17:
    """Stands in for `GrootPolicy._create_groot_model`, which downloads the real one."""
    given = policy.config.num_inference_timesteps
    config = groot_n1_7.GR00TN17Config(
        **({} if given is None else {"num_inference_timesteps": given}),  # as the real one passes it on
        backbone_embedding_dim=64,
        select_layer=2,
        max_state_dim=MAX_DIM,
        max_action_dim=MAX_DIM,
        action_horizon=CHUNK,
        hidden_size=32,
        input_embedding_dim=48,
        max_num_embodiments=4,
        model_dtype="float32",
        dtype="float32",
        diffusion_model_cfg={
            "positional_embeddings": None,
            "num_layers": blocks,
            "num_attention_heads": 4,
            "attention_head_dim": 12,
            "norm_type": "ada_norm",
            "dropout": 0.2,
            "final_dropout": True,
            "output_dim": 32,
            "interleave_self_attention": True,
        },
        vl_self_attention_cfg={
            "positional_embeddings": None,
            "num_layers": 1,
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "dropout": 0.2,
            "final_dropout": True,
        },
    )
    with patched(groot_n1_7, _cosmos_reason2_qwen3_vl_config=qwen_config):
        return groot_n1_7.GR00TN17(config, load_backbone_weights=False).float()


def build(blocks: int = 4, **overrides: Any) -> modeling_groot.GrootPolicy:
    """A GR00T N1.7 with chunks of 10 steps, 5 of them executed, 6 of 16 action dims real."""
    settings = {
        **features(),
        "device": "cpu",
        "chunk_size": CHUNK,
        "n_action_steps": 5,
        "max_state_dim": MAX_DIM,
        "max_action_dim": MAX_DIM,
        "use_bf16": False,
    }
    with patched(modeling_groot.GrootPolicy, _create_groot_model=lambda policy: create_model(policy, blocks)):
        return modeling_groot.GrootPolicy(GrootConfig(**{**settings, **overrides}))


def batch(batch_size: int, seed: int) -> Batch:
    """What GR00T's processor emits: tokens with 4 image places, and 16 patches per row in one tensor."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, 250, (batch_size, 12), generator=generator)
    ids[:, 1] = VISION_START
    ids[:, 2 : 2 + MERGED_PATCHES] = IMAGE_TOKEN
    ids[:, 2 + MERGED_PATCHES] = VISION_END
    values_per_patch = 3 * 2 * PATCH_SIZE * PATCH_SIZE
    return {
        "state": torch.randn(batch_size, 1, MAX_DIM, generator=generator),
        "embodiment_id": torch.full((batch_size,), 2),
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(batch_size * PATCHES, values_per_patch, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * batch_size),
    }


def row(batch: Batch, index: int) -> Batch:
    """One row; the patches of row `index` lie together in `pixel_values`."""
    pixels = batch["pixel_values"][index * PATCHES : (index + 1) * PATCHES]
    return {**take_row(batch, index), "pixel_values": pixels}
