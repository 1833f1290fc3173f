"""LeRobot's Diffusion Policy: the denoising loop takes its batch size and conditioning as arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.kit.schedule import refuse_more_than_trained
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class DiffusionOverride(SamplerOverride):
    """On ``policy.diffusion``."""

    def conditional_sample(
        self,
        batch_size: int,
        global_cond: Tensor | None = None,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        sample = super().conditional_sample  # type: ignore[misc]
        if noise is not None:  # the caller's own noise: nothing to select from
            return self._keystone.at_steps(sample)(batch_size, global_cond, generator, noise)
        assert global_cond is not None
        return self._keystone.run(
            SampleRequest(
                single=lambda: sample(batch_size, global_cond, generator),
                wide=lambda noise, k: sample(batch_size * k, widen(global_cond, k), generator, noise),
                noise=NoiseSpec.like(global_cond, (self.config.horizon, self.config.action_feature.shape[0])),
                stochastic=self.config.noise_scheduler_type == "DDPM",
            )
        )


class DiffusionAdapter(Adapter):
    """Diffusion Policy (U-Net)."""

    name = "diffusion"
    shared_context = "observation features (encoded once; a small vector, copied K times)"
    sampler = "diffusion"
    encoders = ("diffusion._prepare_global_conditioning",)
    steps = "num_inference_steps"
    steps_by_default = "as many as it was trained with, 100"
    override = DiffusionOverride

    def refuse_steps(self, policy: Any, steps: int) -> str:
        return refuse_more_than_trained(policy.diffusion.noise_scheduler, steps)

    def window(self, config: Any) -> Window:
        return Window(int(config.action_feature.shape[0]), config.n_obs_steps - 1, int(config.n_action_steps))
