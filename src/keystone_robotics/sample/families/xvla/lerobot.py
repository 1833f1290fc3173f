"""LeRobot's X-VLA: the transformer processes context and actions jointly, so only the encoder is shared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class XVLAOverride(SamplerOverride):
    """On ``policy.model``."""

    @torch.no_grad()
    def generate_actions(
        self,
        input_ids: Tensor,
        image_input: Tensor,
        image_mask: Tensor,
        domain_id: Tensor,
        proprio: Tensor,
        steps: int,
    ) -> Tensor:
        generate = super().generate_actions  # type: ignore[misc]
        dtype, steps = self._get_target_dtype(), self._keystone.steps or steps

        def draw(noise: Tensor, k: int) -> Tensor:
            self.eval()
            context = self.forward_vlm(input_ids, image_input.to(dtype), image_mask)
            action = denoise(
                self,
                noise,
                steps=max(1, int(steps)),
                domain_id=widen(domain_id, k),
                proprio=widen(proprio.to(dtype), k),
                **{name: widen(value, k) for name, value in context.items()},
            )
            return self.action_space.postprocess(action)

        return self._keystone.run(
            SampleRequest(
                single=lambda: generate(input_ids, image_input, image_mask, domain_id, proprio, steps),
                wide=draw,
                noise=NoiseSpec(
                    batch=input_ids.shape[0],
                    shape=(self.chunk_size, self.dim_action),
                    device=proprio.device,
                    dtype=dtype,
                ),
            )
        )


def denoise(model: Any, noise: Tensor, steps: int, proprio: Tensor, **context: Tensor) -> Tensor:
    """Noise (B * K, T, dim_action) to actions, before the action space's ``postprocess``.

    The network predicts the action, not a velocity. Also used for X-VLA's own code, of which LeRobot's is a copy.
    """
    action = torch.zeros_like(noise)
    for step in range(steps, 0, -1):
        time = torch.full(noise.shape[:1], step / steps, device=noise.device, dtype=noise.dtype)
        mixed = noise * time[:, None, None] + action * (1 - time)[:, None, None]
        state, mixed = model.action_space.preprocess(proprio, mixed)
        action = model.transformer(action_with_noise=mixed, proprio=state, t=time, **context)
    return action


class XVLAAdapter(Adapter):
    """X-VLA."""

    name = "xvla"
    shared_context = (
        "image and text features (encoded once, copied K times; every candidate runs them through every step)"
    )
    sampler = "model"
    encoders = ("model.forward_vlm",)
    steps = "config.num_denoising_steps"
    steps_argument = "steps"
    steps_by_default = "10"
    override = XVLAOverride

    def window(self, config: Any) -> Window:
        # The action space has removed the padding already; the configuration may not have the number of dimensions.
        return Window(None, 0, int(config.n_action_steps))
