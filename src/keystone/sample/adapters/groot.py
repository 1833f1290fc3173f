"""LeRobot's GR00T N1.7: a diffusion transformer that attends in turn to itself and to vision-language tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from keystone.sample.adapter import Adapter, Seam, Window
from keystone.sample.widen import widen


class GrootSeam(Seam):
    """On ``policy._groot_model.action_head``."""

    @torch.no_grad()
    def get_action_with_features(
        self,
        backbone_features: Tensor,
        state_features: Tensor,
        embodiment_id: Tensor,
        backbone_output: Any,
        action_input: Any,
        options: dict[str, Any] | None = None,
    ) -> Any:
        sample = partial(
            super().get_action_with_features,  # type: ignore[misc]
            backbone_features,
            state_features,
            embodiment_id,
            backbone_output,
            action_input,
            options,
        )
        if self._keystone.untouched:
            return sample()
        previous = action_input.get("action")

        def draw(noise: Tensor, k: int) -> Tensor:
            transformer = self._transformer(backbone_features, backbone_output, k)
            return self._denoise(
                noise, transformer, widen(state_features, k), widen(embodiment_id, k), widen(previous, k), options
            )

        chunk = self._keystone.round(
            lambda: sample()["action_pred"],
            draw,
            batch=backbone_features.shape[0],
            shape=(self.config.action_horizon, self.action_dim),
            device=backbone_features.device,
            dtype=backbone_features.dtype,
            delay=0 if previous is None or options is None else options["rtc_frozen_steps"],
        )
        fields = {"action_pred": chunk, "backbone_features": backbone_features, "state_features": state_features}
        return type(action_input)(data=fields)

    def _denoise(
        self,
        actions: Tensor,
        transformer: Callable[[Tensor, Tensor], Tensor],
        state: Tensor,
        embodiment: Tensor,
        previous: Tensor | None,
        options: dict[str, Any] | None,
    ) -> Tensor:
        """Noise (B * K, T, D) to actions; rows overlapping with the previous chunk are held to it, if there is one."""
        rows, device = actions.shape[0], actions.device
        strength = torch.ones_like(actions)
        if previous is not None:
            if options is None:
                raise ValueError("RTC options are required when action is provided to get_action.")
            end, overlap, frozen = (options[n] for n in ("action_horizon", "rtc_overlap_steps", "rtc_frozen_steps"))
            actions = actions.clone()
            actions[:, :overlap] = previous[:, end - overlap : end]
            ramp = 1 - torch.exp(
                -options["rtc_ramp_rate"] * torch.linspace(0.0, 1.0, overlap - frozen + 2, device=device)
            )
            strength[:, :frozen] = 0.0
            strength[:, frozen:overlap] = (ramp / ramp[-1].clamp_min(1e-8))[1:-1, None]
        for step in range(self.num_inference_timesteps):
            bucket = int(step / float(self.num_inference_timesteps) * self.num_timestep_buckets)
            times = torch.full((rows,), bucket, device=device)
            features = self.action_encoder(actions, times, embodiment)
            if self.config.add_pos_embed:
                places = torch.arange(features.shape[1], dtype=torch.long, device=device)
                features = features + self.position_embedding(places)
            hidden = transformer(torch.cat((state, features), dim=1), times)
            velocity = self.action_decoder(hidden, embodiment)[:, -self.action_horizon :]
            actions = actions + 1.0 / self.num_inference_timesteps * velocity * strength
        return actions

    def _transformer(self, context: Tensor, backbone_output: Any, k: int) -> Callable[[Tensor, Tensor], Tensor]:
        """The network as a function of tokens (B * K, S, E) and times (B * K,)."""
        if self._folds:
            image, text = backbone_output.image_mask, backbone_output.backbone_attention_mask
            return partial(self._folded, context.contiguous(), image & text, ~image & text, k)
        masks = {}
        if self.config.use_alternate_vl_dit:
            masks = {name: widen(backbone_output[name], k) for name in ("image_mask", "backbone_attention_mask")}
        wide = widen(context, k)
        return lambda tokens, times: self.model(
            hidden_states=tokens, encoder_hidden_states=wide, timestep=times, **masks
        )

    @property
    def _folds(self) -> bool:
        """Whether the network is the one that `_folded` knows; another one runs as it is, on a widened context."""
        from lerobot.policies.groot.action_head.cross_attention_dit import AlternateVLDiT

        if type(self.model) is not AlternateVLDiT:
            return False
        # A block with positions of its own would count them through all the candidates.
        return all(block.pos_embed is None for block in self.model.transformer_blocks)

    def _folded(
        self, context: Tensor, image_mask: Tensor, text_mask: Tensor, k: int, tokens: Tensor, times: Tensor
    ) -> Tensor:
        """AlternateVLDiT with the context (B, L, E) projected once in a step, not K times.

        In a cross-attention block tokens see the context and not each other, so the K candidates of a row can be queries of
        one row: (B * K, S, E) is folded to (B, K * S, E). Self-attention blocks keep the candidates apart.
        """
        network = self.model
        time = network.timestep_encoder(times)
        hidden = tokens.contiguous()
        for index, block in enumerate(network.transformer_blocks):
            if index % 2:
                hidden = block(hidden, temb=time)
                continue
            of_text = index % (2 * network.attend_text_every_n_blocks) == 0
            hidden = block(
                hidden.reshape(context.shape[0], -1, hidden.shape[-1]),
                encoder_hidden_states=context,
                encoder_attention_mask=text_mask if of_text else image_mask,
                temb=time[::k],  # all candidates are at the same time
            ).reshape(tokens.shape)
        shift, scale = network.proj_out_1(functional.silu(time)).chunk(2, dim=1)
        return network.proj_out_2(network.norm_out(hidden) * (1 + scale[:, None]) + shift[:, None])


class GrootAdapter(Adapter):
    """GR00T N1.7."""

    name = "groot"
    shares = "vision-language tokens and their projections in cross-attention"
    seam = GrootSeam

    def module(self, policy: Any) -> Any:
        return policy._groot_model.action_head

    def encoders(self, policy: Any) -> Sequence[tuple[Any, str]]:
        return [(policy._groot_model.backbone, "forward"), (policy._groot_model.action_head, "_encode_features")]

    def window(self, config: Any) -> Window:
        steps = int(config.n_action_steps)
        steps = min(steps, _executed_steps(config.base_model_path, config.embodiment_tag) or steps)
        return Window(int(config.action_feature.shape[0]), 0, steps)


@functools.cache
def _executed_steps(checkpoint: Any, embodiment: Any) -> int | None:
    """How many steps a checkpoint executes at most, read from its files as the policy does; None if they do not say."""
    from lerobot.policies.groot.configuration_groot import infer_groot_n1_7_action_execution_horizon

    return infer_groot_n1_7_action_execution_horizon(checkpoint, embodiment)
