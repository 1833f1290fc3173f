"""FastWAM with two-layer experts and a convolution instead of the Wan VAE."""

from collections.abc import Sequence
from typing import Any

import torch
from lerobot.policies.fastwam import modeling_fastwam
from lerobot.policies.fastwam.configuration_fastwam import (
    FastWAMConfig,
    default_action_dit_config,
    default_video_dit_config,
)
from lerobot.utils.constants import OBS_STATE
from torch import Tensor, nn

from .common import ACTION_DIM, IMAGE, STATE_DIM, Batch, features, patched

IMAGE_SHAPE = (3, 32, 64)
TEXT_DIM = 32
LAYERS = {
    "ffn_dim": 96,
    "freq_dim": 32,
    "text_dim": TEXT_DIM,
    "num_heads": 4,
    "attn_head_dim": 16,
    "num_layers": 2,
}


class PatchVAE(nn.Module):
    """The first frame in patches of 16: the shapes of the Wan VAE without its weights."""

    upsampling_factor = 16
    temporal_downsample_factor = 4
    z_dim = 48

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, self.z_dim, self.upsampling_factor, self.upsampling_factor)

    def encode(self, videos: Tensor | Sequence[Tensor], **options: Any) -> Tensor:
        """(B, 3, T, H, W) to (B, 48, 1, H / 16, W / 16)."""
        frames = torch.stack(list(videos))[:, :, 0]
        return self.patches(frames.float()).unsqueeze(2)


def build(**overrides: Any) -> modeling_fastwam.FastWAMPolicy:
    """A FastWAM with chunks of 8 steps, 4 of them executed.

    `inference_seed` is None here, where LeRobot's default of 42 would make every call draw the same noise.
    """
    settings = {
        **features(image_shape=IMAGE_SHAPE),
        "device": "cpu",
        "action_dim": ACTION_DIM,
        "proprio_dim": STATE_DIM,
        "action_horizon": 8,
        "n_action_steps": 4,
        "num_video_frames": 17,
        "action_video_freq_ratio": 4,
        "image_size": IMAGE_SHAPE[1:],
        "video_dit_config": {**default_video_dit_config(ACTION_DIM), **LAYERS, "hidden_dim": 64},
        "action_dit_config": {**default_action_dit_config(ACTION_DIM), **LAYERS, "hidden_dim": 48},
        "load_text_encoder": False,
        "torch_dtype": "float32",
        "base_model_id": None,
        "num_inference_steps": 4,
        "inference_seed": None,
    }
    with patched(
        modeling_fastwam,
        load_pretrained_wan_vae=lambda **options: PatchVAE(),
        build_wan_tokenizer=lambda **options: None,
    ):
        return modeling_fastwam.FastWAMPolicy(FastWAMConfig(**{**settings, **overrides}))


def batch(batch_size: int, seed: int) -> Batch:
    """An observation with its instruction encoded beforehand, as there is no text encoder."""
    generator = torch.Generator().manual_seed(seed)
    return {
        OBS_STATE: torch.randn(batch_size, STATE_DIM, generator=generator),
        IMAGE: torch.rand(batch_size, *IMAGE_SHAPE, generator=generator),
        "context": torch.randn(batch_size, 7, TEXT_DIM, generator=generator),
        "context_mask": torch.ones(batch_size, 7, dtype=torch.bool),
    }
