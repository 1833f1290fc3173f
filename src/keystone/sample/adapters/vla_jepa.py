"""LeRobot's VLA-JEPA: a flow-matching head on the embodied action tokens of a vision-language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from keystone.sample.adapter import Adapter, Seam
from keystone.sample.widen import widen


class VLAJEPASeam(Seam):
    """On ``policy.model.action_model``."""

    @torch.no_grad()
    def predict_action(self, conditioning_tokens: Tensor, state: Tensor | None = None) -> Tensor:
        single = super().predict_action  # type: ignore[misc]
        horizon, settings, steps = self.action_horizon, self.config, self.num_inference_timesteps

        def draw(noise: Tensor, k: int) -> Tensor:
            tokens, wide_state, actions = widen(conditioning_tokens, k), widen(state, k), noise
            for step in range(steps):
                bucket = int(step / steps * settings.action_num_timestep_buckets)
                times = torch.full(noise.shape[:1], bucket, device=noise.device, dtype=torch.long)
                hidden = self.model(
                    hidden_states=self._build_inputs(tokens, actions, wide_state, times),
                    encoder_hidden_states=tokens,
                    timestep=times,
                )
                actions = actions + self.action_decoder(hidden[:, -horizon:]) / steps
            return actions

        return self._keystone.round(
            lambda: single(conditioning_tokens, state),
            draw,
            batch=conditioning_tokens.shape[0],
            shape=(horizon, settings.action_dim),
            device=conditioning_tokens.device,
            dtype=conditioning_tokens.dtype,
        )


class VLAJEPAAdapter(Adapter):
    """VLA-JEPA."""

    name = "vla_jepa"
    shares = "embodied action tokens"
    seam = VLAJEPASeam

    def module(self, policy: Any) -> Any:
        return policy.model.action_model

    def cost(self, policy: Any) -> Any:
        return self.module(policy).num_inference_timesteps

    def encoders(self, policy: Any) -> Sequence[tuple[Any, str]]:
        return [(policy.model, "_encode_qwen")]
