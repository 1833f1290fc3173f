"""LeRobot's EVO1: a flow from *uniform* noise, whose action tokens attend to vision-language tokens only."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families.evo1.denoiser import BYPASS, prepare, recognises, run_blocks
from keystone_robotics.sample.kit.arguments import known_arguments
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class Inputs(NamedTuple):
    """The arguments of ``get_action``."""

    fused_tokens: Tensor
    state: Tensor | None = None
    embodiment_id: Tensor | None = None
    action_mask: Tensor | None = None
    context_mask: Tensor | None = None
    inference_delay: int | None = None
    prev_chunk_left_over: Tensor | None = None
    execution_horizon: int | None = None
    rtc_processor: Any = None

    @property
    def is_real_time(self) -> bool:
        """Whether the chunk continues a previous one (real-time chunking)."""
        has_previous = self.inference_delay is not None or self.prev_chunk_left_over is not None
        return self.rtc_processor is not None and has_previous


class Evo1Override(SamplerOverride):
    """On ``policy.model.action_head``."""

    def get_action(self, *args: Any, **kwargs: Any) -> Tensor:
        """Flat chunks (B, T * D), D the padded width."""
        own, engine = super().get_action, self._keystone  # type: ignore[misc]
        call = partial(own, *args, **kwargs)
        if engine.untouched:
            return engine.run_single(call, self._unflatten)
        given = Inputs(**known_arguments("evo1", own, args, kwargs, Inputs._fields))
        draw, batch, rtc = partial(self._draw, given), given.fused_tokens.shape[0], given.is_real_time
        return engine.run(
            SampleRequest(
                single=call,
                chunk=self._unflatten,
                restore=lambda chosen: chosen.reshape(batch, -1),
                wide=draw,
                shared=partial(draw, shared=True) if self.may_share() else None,
                noise=NoiseSpec.like(given.fused_tokens, (self.horizon * self.per_action_dim,), uniform=True),
                delay=int(given.inference_delay or 0) if rtc else 0,
                guided=rtc and given.prev_chunk_left_over is not None,
            )
        )

    def _unflatten(self, flat: Tensor) -> Tensor:
        return flat.view(-1, self.horizon, self.per_action_dim)

    def _draw(self, given: Inputs, noise: Tensor, k: int, shared: bool = False) -> Tensor:
        """(B * K, T, D) chunks from flat noise (B * K, T * D)."""
        batch, chunk = given.fused_tokens.shape[0], (self.horizon, self.per_action_dim)
        context, padding, embodiment = self._prepare_context(
            given.fused_tokens, given.state, given.embodiment_id, given.context_mask
        )
        mask = self._expand_action_mask(
            given.action_mask, batch_size=batch, per_action_dim=chunk[1], device=context.device, dtype=context.dtype
        )
        actions = noise.to(context.dtype).view(batch * k, *chunk) * widen(mask, k)
        context, embodiment, mask = context.to(self.dtype), widen(embodiment, k), widen(mask, k)
        blocks = self.transformer_blocks
        if shared:
            network = partial(run_blocks, blocks, prepare(blocks, context, padding))
        else:
            network = partial(_run_own_blocks, blocks, widen(context, k), widen(padding, k))
        # A leftover of one row broadcasts to all candidates.
        left_over = given.prev_chunk_left_over
        if left_over is not None and left_over.ndim == 3 and left_over.shape[0] == batch:
            left_over = widen(left_over, k)
        steps = int(self.num_inference_timesteps)

        def velocity(x: Tensor, time: Tensor) -> Tensor:
            x = self._project_actions(x * mask, embodiment).to(self.dtype)
            x = self.norm_out(network(x, time))
            x = self.seq_pool_proj(x.reshape(batch * k, -1)) if self.horizon > 1 else x.squeeze(1)
            return self.mlp_head(x, embodiment).view(batch * k, *chunk) * mask

        for i in range(steps):
            time = self.time_pos_enc(1000)[0, min(int(i / steps * 999), 999)].to(context)
            if given.is_real_time:
                # Real-time chunking counts time from 1 down to 0, with the opposite velocity.
                guided = given.rtc_processor.denoise_step(
                    x_t=actions,
                    prev_chunk_left_over=left_over,
                    inference_delay=given.inference_delay,
                    time=1.0 - i / steps,
                    original_denoise_step_partial=lambda x, time=time: -velocity(x, time),
                    execution_horizon=given.execution_horizon,
                )
                actions = actions - guided / steps
            else:
                actions = actions + velocity(actions, time) / steps
        return actions * mask

    def may_share(self) -> bool:
        """Whether the fast path supports the blocks, and would skip no hook or replaced method."""
        blocks = self.transformer_blocks
        return recognises(blocks) and may_bypass(self._keystone, BYPASS, blocks)


def _run_own_blocks(blocks: Any, context: Tensor, padding: Tensor | None, x: Tensor, time: Tensor) -> Tensor:
    """The head's own blocks on tokens (B * K, S, E), with a row of context for each."""
    for block in blocks:
        x = block(x, context, time.expand(len(x), -1), padding)
    return x


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
