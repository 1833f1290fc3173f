"""LeRobot's EVO1: a flow from *uniform* noise, whose action tokens attend to vision-language tokens only."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families.evo1.denoiser import BYPASS, prepare, recognises, run_blocks
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class Evo1Override(SamplerOverride):
    """On ``policy.model.action_head``."""

    def get_action(
        self,
        fused_tokens: Tensor,
        state: Tensor | None = None,
        embodiment_id: Tensor | None = None,
        action_mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        inference_delay: int | None = None,
        prev_chunk_left_over: Tensor | None = None,
        execution_horizon: int | None = None,
        rtc_processor: Any = None,
    ) -> Tensor:
        """Flat chunks (B, T * D), D the padded width."""
        single = super().get_action  # type: ignore[misc]
        batch, chunk = fused_tokens.shape[0], (self.horizon, self.per_action_dim)
        rtc = rtc_processor is not None and (inference_delay is not None or prev_chunk_left_over is not None)

        def original() -> Tensor:
            flat: Tensor = single(
                fused_tokens, state, embodiment_id, action_mask, context_mask,
                inference_delay, prev_chunk_left_over, execution_horizon, rtc_processor,
            )  # fmt: skip
            return flat

        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            context, padding, embodiment = self._prepare_context(fused_tokens, state, embodiment_id, context_mask)
            mask = self._expand_action_mask(
                action_mask, batch_size=batch, per_action_dim=chunk[1], device=context.device, dtype=context.dtype
            )
            actions = noise.to(context.dtype).view(batch * k, *chunk) * widen(mask, k)
            context, embodiment, mask = context.to(self.dtype), widen(embodiment, k), widen(mask, k)
            if shared:
                contexts = prepare(self.transformer_blocks, context, padding)
            else:
                context, padding = widen(context, k), widen(padding, k)
            # A leftover of one row broadcasts to all candidates.
            left_over = prev_chunk_left_over
            if left_over is not None and left_over.ndim == 3 and left_over.shape[0] == batch:
                left_over = widen(left_over, k)
            steps = int(self.num_inference_timesteps)

            def velocity(x: Tensor, time: Tensor) -> Tensor:
                x = self._project_actions(x * mask, embodiment).to(self.dtype)
                if shared:
                    x = run_blocks(self.transformer_blocks, contexts, x, time)
                else:
                    for block in self.transformer_blocks:
                        x = block(x, context, time.expand(len(x), -1), padding)
                x = self.norm_out(x)
                x = self.seq_pool_proj(x.reshape(batch * k, -1)) if self.horizon > 1 else x.squeeze(1)
                return self.mlp_head(x, embodiment).view(batch * k, *chunk) * mask

            for i in range(steps):
                time = self.time_pos_enc(1000)[0, min(int(i / steps * 999), 999)].to(context)
                if rtc:
                    # Real-time chunking counts time from 1 down to 0, with the opposite velocity.
                    guided = rtc_processor.denoise_step(
                        x_t=actions,
                        prev_chunk_left_over=left_over,
                        inference_delay=inference_delay,
                        time=1.0 - i / steps,
                        original_denoise_step_partial=lambda x, time=time: -velocity(x, time),
                        execution_horizon=execution_horizon,
                    )
                    actions = actions - guided / steps
                else:
                    actions = actions + velocity(actions, time) / steps
            return actions * mask

        return self._keystone.run(
            SampleRequest(
                single=original,
                chunk=lambda flat: flat.view(batch, *chunk),
                restore=lambda chosen: chosen.reshape(batch, -1),
                wide=draw,
                shared=partial(draw, shared=True) if self._may_share() else None,
                noise=NoiseSpec(
                    batch=batch,
                    shape=(self.horizon * self.per_action_dim,),
                    device=fused_tokens.device,
                    dtype=fused_tokens.dtype,
                    uniform=True,
                ),
                delay=int(inference_delay or 0) if rtc else 0,
                guided=rtc and prev_chunk_left_over is not None,
            )
        )

    def _may_share(self) -> bool:
        blocks = self.transformer_blocks
        return recognises(blocks) and may_bypass(self._keystone, BYPASS, blocks)


class Evo1Adapter(Adapter):
    """EVO1."""

    name = "evo1"
    shared_context = (
        "vision-language and state tokens and their projections in cross-attention (one copy, independent of K)"
    )
    sampler = "model.action_head"
    encoders = ("_compute_fused_tokens",)
    steps = "num_inference_timesteps"
    steps_by_default = "32"
    override = Evo1Override
