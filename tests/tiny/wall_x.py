"""Wall-X on a Qwen2.5-VL mixture of experts with 2 layers; needs the packages torchdiffeq and qwen-vl-utils.

Its weights are bfloat16 whatever is asked for: LeRobot casts them, and the proprioception on its way in.
"""

import functools
from typing import Any

from lerobot.policies.wall_x.configuration_wall_x import WallXConfig
from lerobot.policies.wall_x.modeling_wall_x import Qwen2_5_VLMoEForAction, WallXPolicy
from lerobot.policies.wall_x.qwen_model import Qwen2_5_VLConfig
from safetensors.torch import save_file
from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

from .common import assets, features
from .qwen import CHAT_TEMPLATE, qwen_tokenizer

WIDTH = 64
MAX_DIM = 8


class FourSteps(Qwen2_5_VLMoEForAction):
    """Four denoising steps, as the other tiny policies take: Wall-X has no setting for them, only an argument's default."""

    def predict(self, *args: Any, num_inference_timesteps: int = 4, **kwargs: Any) -> Any:
        return super().predict(*args, num_inference_timesteps=num_inference_timesteps, **kwargs)


@functools.cache
def qwen2_5_vl_moe() -> str:
    """A directory with a config, a processor and no weights: LeRobot keeps its random ones instead."""
    directory = assets() / "wall_x"
    tokenizer = qwen_tokenizer(directory, "<|im_start|>", "<|im_end|>", "<|propri|>", "<|action|>")
    expert = {"hidden_size": WIDTH, "intermediate_size": 96, "hidden_act": "silu"}
    config = Qwen2_5_VLConfig(
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        agent_pos_config={"arm": MAX_DIM},
        text_config={
            "hidden_size": WIDTH,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 1024,
            "rope_scaling": {"mrope_section": [4, 2, 2], "rope_type": "default"},
            "num_experts": 2,
            "experts": [expert, expert],
            "dim_inputs": [WIDTH, WIDTH],
            "dof_config": {"arm": MAX_DIM},
            "mlp_moe": True,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": WIDTH,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "in_channels": 3,
        },
    )
    config.save_pretrained(directory)
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=14, merge_size=2),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(directory)
    save_file({}, directory / "model.safetensors")
    return str(directory)


def build(**overrides: Any) -> WallXPolicy:
    """A Wall-X with chunks of 8 steps, 4 of them executed, 6 of 8 action dims real, drawn in 4 steps."""
    settings = {
        **features(),
        "device": "cpu",
        "pretrained_name_or_path": qwen2_5_vl_moe(),
        "max_action_dim": MAX_DIM,
        "max_state_dim": MAX_DIM,
        "chunk_size": 8,
        "n_action_steps": 4,
    }
    policy = WallXPolicy(WallXConfig(**{**settings, **overrides}))
    policy.model.__class__ = FourSteps
    return policy
