"""The original Diffusion Policy's and DP3's real policies with tiny random weights."""

import sys
from typing import Any

import torch
from checkouts import without
from groot_head import spread_out
from torch import Tensor

HORIZON, DIMS, STATE, OBSERVED = 8, 3, 5, 2
SHAPE = {"horizon": HORIZON, "n_action_steps": 4, "n_obs_steps": OBSERVED}
SCHEDULE = {"num_train_timesteps": 20, "beta_schedule": "squaredcos_cap_v2", "clip_sample": False}
UNET = {"diffusion_step_embed_dim": 16, "down_dims": [16, 32], "kernel_size": 3, "n_groups": 4}


def scheduler(kind: str) -> Any:
    from diffusers.schedulers.scheduling_ddim import DDIMScheduler
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

    return (DDPMScheduler if kind == "DDPM" else DDIMScheduler)(**SCHEDULE, prediction_type="epsilon")


def unet_on_states(schedule: str, how: str) -> Any:
    """``how``: observations are a "global" or "local" condition, or "inpainted"."""
    from diffusion_policy.model.diffusion.conditional_unet1d import ConditionalUnet1D
    from diffusion_policy.policy.diffusion_unet_lowdim_policy import DiffusionUnetLowdimPolicy

    network = ConditionalUnet1D(
        DIMS + STATE * (how == "inpainted"),
        local_cond_dim=STATE if how == "local" else None,
        global_cond_dim=OBSERVED * STATE if how == "global" else None,
        **UNET,
    )
    return DiffusionUnetLowdimPolicy(
        network, scheduler(schedule), obs_dim=STATE, action_dim=DIMS, num_inference_steps=5, **SHAPE,
        obs_as_global_cond=how == "global", obs_as_local_cond=how == "local", oa_step_convention=True,
    )  # fmt: skip


def transformer_on_states(schedule: str, how: str) -> Any:
    from diffusion_policy.model.diffusion.transformer_for_diffusion import TransformerForDiffusion
    from diffusion_policy.policy.diffusion_transformer_lowdim_policy import DiffusionTransformerLowdimPolicy

    conditioned = how == "global"
    network = TransformerForDiffusion(
        DIMS if conditioned else DIMS + STATE, DIMS if conditioned else DIMS + STATE, HORIZON, OBSERVED,
        cond_dim=STATE if conditioned else 0, n_layer=2, n_head=2, n_emb=16, obs_as_cond=conditioned, causal_attn=True,
    )  # fmt: skip
    return DiffusionTransformerLowdimPolicy(
        network, scheduler(schedule), obs_dim=STATE, action_dim=DIMS, num_inference_steps=5, **SHAPE,
        obs_as_cond=conditioned, **({"eta": 0.5} if schedule == "DDIM" else {}),
    )  # fmt: skip


def unet_on_images(schedule: str, how: str) -> Any:
    from diffusion_policy.model.vision.model_getter import get_resnet
    from diffusion_policy.model.vision.multi_image_obs_encoder import MultiImageObsEncoder
    from diffusion_policy.policy.diffusion_unet_image_policy import DiffusionUnetImagePolicy

    shapes = {
        "obs": {"image": {"shape": [3, 32, 32], "type": "rgb"}, "obs": {"shape": [STATE], "type": "low_dim"}},
        "action": {"shape": [DIMS]},
    }
    encoder = MultiImageObsEncoder(shapes, get_resnet("resnet18"), random_crop=False, use_group_norm=True)
    return DiffusionUnetImagePolicy(
        shapes, scheduler(schedule), encoder, num_inference_steps=5, **SHAPE, **UNET, obs_as_global_cond=how == "global"
    )


def dp3(schedule: str, how: str) -> Any:
    without("pytorch3d", "pytorch3d.ops")  # imported for its farthest points, and without a package for this Python
    from diffusion_policy_3d.policy.dp3 import DP3
    from diffusion_policy_3d.policy.simple_dp3 import SimpleDP3
    from omegaconf import OmegaConf

    cloud = OmegaConf.create({"in_channels": 3, "out_channels": 8, "use_layernorm": True, "final_norm": "layernorm"})
    shapes = OmegaConf.create(
        {
            "obs": {"point_cloud": {"shape": [16, 3], "type": "point_cloud"}, "agent_pos": {"shape": [STATE]}},
            "action": {"shape": [DIMS]},
        }
    )
    kind = SimpleDP3 if how == "simple" else DP3
    return kind(
        shapes, scheduler(schedule), num_inference_steps=5, **SHAPE, **UNET, encoder_output_dim=8,
        pointcloud_encoder_cfg=cloud,
    )  # fmt: skip


def finished(policy: Any, fields: tuple[str, ...]) -> Any:
    """With weights that are not zero anywhere, and a normalizer that changes nothing."""
    normalizers = sys.modules[type(policy.normalizer).__module__]
    policy = spread_out(policy)
    for field in fields:
        policy.normalizer[field] = normalizers.SingleFieldLinearNormalizer.create_identity()
    return policy


def predict(policy: Any, rows: int) -> Tensor:
    """The whole chunk, of which `predict_action` executes a part."""
    generator = torch.Generator().manual_seed(rows)
    values = {
        "obs": torch.randn(rows, OBSERVED, STATE, generator=generator),
        "image": torch.rand(rows, OBSERVED, 3, 32, 32, generator=generator),
        "point_cloud": torch.randn(rows, OBSERVED, 16, 3, generator=generator),
        "agent_pos": torch.randn(rows, OBSERVED, STATE, generator=generator),
    }
    fields = [field for field in values if field in policy.normalizer.params_dict]
    return policy.predict_action({field: values[field] for field in fields})["action_pred"]
