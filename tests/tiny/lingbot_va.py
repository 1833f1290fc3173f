"""LingBot-VA with two-layer streams; the frozen Wan VAE and UMT5 encoder are tiny ones, saved locally."""

import functools
import string
from typing import Any

from diffusers import AutoencoderKLWan
from lerobot.policies.lingbot_va.configuration_lingbot_va import LingBotVAConfig
from lerobot.policies.lingbot_va.modeling_lingbot_va import LingBotVAPolicy
from transformers import T5TokenizerFast, UMT5Config, UMT5EncoderModel

from .common import ACTION_DIM, IMAGE, assets, features, seeded

TEXT_DIM = 32
LATENT_CHANNELS = 48
"""LeRobot draws video noise of this width, whatever the config says."""


@functools.cache
def frozen_modules() -> str:
    """A directory with `vae`, `text_encoder` and `tokenizer`; the VAE maps 16 x 16 pixels to one latent."""
    directory = assets() / "wan"
    with seeded(0):
        AutoencoderKLWan(
            base_dim=8,
            decoder_base_dim=8,
            z_dim=LATENT_CHANNELS,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[False, True, True],
            latents_mean=[0.0] * LATENT_CHANNELS,
            latents_std=[1.0] * LATENT_CHANNELS,
            is_residual=True,
            in_channels=12,
            out_channels=12,
            patch_size=2,
            scale_factor_spatial=16,
        ).save_pretrained(directory / "vae")
        UMT5EncoderModel(
            UMT5Config(vocab_size=512, d_model=TEXT_DIM, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
        ).save_pretrained(directory / "text_encoder")
    words = ["<pad>", "</s>", "<unk>", "▁", *string.ascii_lowercase]
    T5TokenizerFast(vocab=[(word, 0.0) for word in words], extra_ids=0).save_pretrained(directory / "tokenizer")
    return str(directory)


def build(**overrides: Any) -> LingBotVAPolicy:
    """A LingBot-VA with chunks of 2 frames of 4 steps; the first chunk lacks its frame of conditioning."""
    settings = {
        **features(),
        "device": "cpu",
        "wan_pretrained_path": frozen_modules(),
        "dtype": "float32",
        "obs_cam_keys": [IMAGE],
        "height": 32,
        "width": 32,
        "num_attention_heads": 4,
        "attention_head_dim": 24,
        "ffn_dim": 96,
        "freq_dim": 32,
        "text_dim": TEXT_DIM,
        "num_layers": 2,
        "action_dim": 8,
        "used_action_channel_ids": list(range(ACTION_DIM)),
        "action_per_frame": 4,
        "frame_chunk_size": 2,
        "attn_window": 8,
        "max_sequence_length": 32,
        "num_inference_steps": 3,
        "action_num_inference_steps": 4,
    }
    return LingBotVAPolicy(LingBotVAConfig(**{**settings, **overrides}))
