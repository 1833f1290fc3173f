"""Fast-WAM's real model with two-layer experts and a convolution instead of the Wan VAE."""

from typing import Any

import torch
from groot_head import spread_out
from torch import Tensor, nn

EXPERT = {
    "ffn_dim": 48,
    "freq_dim": 16,
    "text_dim": 20,
    "num_heads": 2,
    "attn_head_dim": 12,
    "num_layers": 2,
    "eps": 1e-6,
}


class PatchVAE(nn.Module):
    """The first frame in patches of 16: the shapes of the Wan VAE without its weights."""

    upsampling_factor, temporal_downsample_factor = 16, 4

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 48, 16, 16)

    def encode(self, videos: Any, **options: Any) -> Tensor:
        return self.patches(torch.stack(list(videos))[:, :, 0]).unsqueeze(2)


def build() -> Any:
    from fastwam.models.wan22.action_dit import ActionDiT
    from fastwam.models.wan22.fastwam import FastWAM
    from fastwam.models.wan22.mot import MoT
    from fastwam.models.wan22.wan_video_dit import WanVideoDiT

    video = WanVideoDiT(
        **EXPERT, hidden_dim=32, in_dim=48, out_dim=48, patch_size=(1, 1, 1), has_image_input=False,
        seperated_timestep=True, require_clip_embedding=False, require_vae_embedding=False,
        fuse_vae_embedding_in_latents=True, video_attention_mask_mode="first_frame_causal",
    )  # fmt: skip
    action = ActionDiT(**EXPERT, hidden_dim=24, action_dim=14)
    mot = MoT(mixtures={"video": video, "action": action}, mot_checkpoint_mixed_attn=False)
    return spread_out(FastWAM(video, action, mot, PatchVAE(), text_dim=20, proprio_dim=5))


def predict(model: Any, seed: int | None = None, steps: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return model.infer_action(
        prompt=None,
        input_image=torch.rand(1, 3, 32, 48, generator=generator),
        action_horizon=8,
        proprio=torch.randn(5, generator=generator),
        context=torch.randn(6, 20, generator=generator),
        context_mask=torch.arange(6) < 5,
        num_inference_steps=steps,
        seed=seed,
    )["action"][None]
