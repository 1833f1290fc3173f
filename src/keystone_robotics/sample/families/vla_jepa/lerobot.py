"""LeRobot's VLA-JEPA: a flow-matching head on the embodied action tokens of a vision-language model."""

from __future__ import annotations

import inspect
from functools import partial

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families.groot.denoiser import SharedDiT
from keystone_robotics.sample.families.vla_jepa.denoiser import BYPASS, as_groot_dit, recognises
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class VLAJEPAOverride(SamplerOverride):
    """On ``policy.model.action_model``."""

    @torch.no_grad()
    def predict_action(self, conditioning_tokens: Tensor, state: Tensor | None = None) -> Tensor:
        single = super().predict_action  # type: ignore[misc]
        horizon, settings = self.action_horizon, self.config

        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            steps = self.num_inference_timesteps
            buckets = [int(step / steps * settings.action_num_timestep_buckets) for step in range(steps)]
            tokens = conditioning_tokens if shared else widen(conditioning_tokens, k)
            wide_state, actions = widen(state, k), noise
            # Until LeRobot 0.6.1 it takes the context, but does not use it.
            unused = [tokens] if "conditioning_tokens" in inspect.signature(self._build_inputs).parameters else []
            if shared:
                network = SharedDiT(as_groot_dit(self.model), tokens, torch.tensor(buckets, device=noise.device))
            for step, bucket in enumerate(buckets):
                times = torch.full(noise.shape[:1], bucket, device=noise.device, dtype=torch.long)
                own = self._build_inputs(*unused, actions, wide_state, times)
                if shared:
                    hidden = network(own, step)
                else:
                    hidden = self.model(hidden_states=own, encoder_hidden_states=tokens, timestep=times)
                actions = actions + self.action_decoder(hidden[:, -horizon:]) / steps
            return actions

        return self._keystone.run(
            SampleRequest(
                single=lambda: single(conditioning_tokens, state),
                wide=draw,
                shared=partial(draw, shared=True) if self.may_share() else None,
                noise=NoiseSpec.like(conditioning_tokens, (horizon, settings.action_dim)),
            )
        )

    def may_share(self) -> bool:
        """Whether the fast path supports the network, and would skip no hook or replaced method."""
        return recognises(self.model) and may_bypass(self._keystone, BYPASS, self.model)


class VLAJEPAAdapter(Adapter):
    """VLA-JEPA."""

    name = "vla_jepa"
    shared_context = "embodied action tokens and their projections in cross-attention (one copy, independent of K)"
    sampler = "model.action_model"
    encoders = ("model._encode_qwen",)
    steps = "num_inference_timesteps"
    steps_by_default = "4"
    override = VLAJEPAOverride
