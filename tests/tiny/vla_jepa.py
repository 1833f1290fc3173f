"""VLA-JEPA on a Qwen3-VL of 2 layers, saved locally; the world model serves training only and is left out."""

import functools
from typing import Any

from lerobot.policies.vla_jepa.configuration_vla_jepa import VLAJEPAConfig
from lerobot.policies.vla_jepa.modeling_vla_jepa import VLAJEPAPolicy
from transformers import (
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from .common import assets, features, seeded
from .qwen import CHAT_TEMPLATE, qwen_tokenizer

WIDTH = 64


@functools.cache
def qwen3_vl() -> str:
    """A directory with a tiny random Qwen3-VL and its processor; an image of 64 pixels takes 16 tokens."""
    directory = assets() / "qwen3_vl"
    tokenizer = qwen_tokenizer(directory)
    config = Qwen3VLConfig(
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        text_config={
            "model_type": "qwen3_vl_text",
            "hidden_size": WIDTH,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 512,
            "max_position_embeddings": 1024,
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
            "out_hidden_size": WIDTH,
            "patch_size": 8,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "deepstack_visual_indexes": [0],
            "in_channels": 3,
        },
    )
    with seeded(0):
        Qwen3VLForConditionalGeneration(config).save_pretrained(directory)
    processor = Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=8, merge_size=2, min_pixels=64, max_pixels=64 * 64),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(directory)
    return str(directory)


def build(**overrides: Any) -> VLAJEPAPolicy:
    """A VLA-JEPA with chunks of 10 steps, 5 of them executed."""
    settings = {
        **features(),
        "device": "cpu",
        "qwen_model_name": qwen3_vl(),
        "enable_world_model": False,
        "torch_dtype": "float32",
        "num_action_tokens_per_timestep": 2,
        "num_embodied_action_tokens_per_instruction": 4,
        "action_model_type": "DiT-test",
        "action_hidden_size": 32,
        "action_num_layers": 2,
        "chunk_size": 10,
        "n_action_steps": 5,
        "num_inference_timesteps": 4,
    }
    return VLAJEPAPolicy(VLAJEPAConfig(**{**settings, **overrides}))
