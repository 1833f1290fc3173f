"""X-VLA on a Florence-2 of two small stages."""

import functools
from typing import Any

from lerobot.policies.xvla.configuration_xvla import XVLAConfig
from lerobot.policies.xvla.modeling_xvla import XVLAPolicy

from .common import assets, byte_tokenizer, features

FLORENCE = {
    "vision_config": {
        "embed_dim": [16, 32],
        "num_heads": [2, 4],
        "num_groups": [2, 4],
        "depths": [1, 1],
        "patch_size": [7, 3],
        "patch_stride": [4, 2],
        "patch_padding": [3, 1],
        "patch_prenorm": [False, True],
        "window_size": 4,
        "projection_dim": 32,
        "max_position_embeddings": 50,
        "max_temporal_embeddings": 10,
    },
    "text_config": {
        "model_type": "bart",
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "vocab_size": 512,
        "max_position_embeddings": 256,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
}


@functools.cache
def tokenizer() -> str:
    """A directory with a byte tokenizer, which only the processors read."""
    directory = assets() / "xvla"
    byte_tokenizer(directory)
    return str(directory)


def build(**overrides: Any) -> XVLAPolicy:
    """An X-VLA with chunks of 10 steps, 5 of them executed, 6 of 20 action dims real."""
    settings = {
        **features(),
        "device": "cpu",
        "florence_config": FLORENCE,
        "tokenizer_name": tokenizer(),
        "hidden_size": 64,
        "depth": 2,
        "num_heads": 4,
        "num_domains": 3,
        "len_soft_prompts": 4,
        "max_len_seq": 256,
        "max_state_dim": 20,
        "max_action_dim": 20,
        "action_mode": "auto",
        "chunk_size": 10,
        "n_action_steps": 5,
        "num_denoising_steps": 4,
    }
    return XVLAPolicy(XVLAConfig(**{**settings, **overrides}))
