"""LeRobot's GR00T N1.7: a diffusion transformer that attends in turn to itself and to vision-language tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keystone.sample.adapter import Adapter, Seam, Window
from keystone.sample.shared.dit import SharedDiT, recognises, run_blocks
from keystone.sample.shared.groot_head import denoise, run_network, step_times
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
        inputs = _Inputs(backbone_features, state_features, embodiment_id, backbone_output, previous, options)
        chunk = self._keystone.round(
            lambda: sample()["action_pred"],
            partial(self._draw, inputs),
            fast=partial(self._draw_shared, inputs) if recognises(self.model) else None,
            batch=backbone_features.shape[0],
            shape=(self.config.action_horizon, self.action_dim),
            device=backbone_features.device,
            dtype=backbone_features.dtype,
            delay=0 if previous is None or options is None else options["rtc_frozen_steps"],
        )
        fields = {"action_pred": chunk, "backbone_features": backbone_features, "state_features": state_features}
        return type(action_input)(data=fields)

    def _draw(self, inputs: _Inputs, noise: Tensor, k: int) -> Tensor:
        """The network as it is, on a context of B * K rows."""
        run, times, masks = self._keystone.step(run_network), step_times(self), {}
        if self.config.use_alternate_vl_dit:
            masks = {name: widen(inputs.encoded[name], k) for name in ("image_mask", "backbone_attention_mask")}
        context = widen(inputs.context, k)

        def transformer(tokens: Tensor, step: int) -> Tensor:
            time = torch.full((tokens.shape[0],), times[step], device=tokens.device)
            return run(self.model, hidden_states=tokens, encoder_hidden_states=context, timestep=time, **masks)

        return self._denoise(inputs, noise, k, transformer, widen(inputs.embodiment, k))

    def _draw_shared(self, inputs: _Inputs, noise: Tensor, k: int) -> Tensor:
        """All that the candidates of a row have in common is computed once."""
        masks = {}
        if self.config.use_alternate_vl_dit:
            masks = {"mask": inputs.encoded.backbone_attention_mask, "image_mask": inputs.encoded.image_mask}
        times = torch.tensor(step_times(self), device=noise.device)
        transformer = SharedDiT(self.model, inputs.context, times, **masks, run=self._keystone.step(run_blocks))
        return self._denoise(inputs, noise, k, transformer, inputs.embodiment)

    def _denoise(
        self,
        inputs: _Inputs,
        noise: Tensor,
        k: int,
        transformer: Callable[[Tensor, int], Tensor],
        embodiment: Tensor,
    ) -> Tensor:
        """Noise (B * K, T, D) to actions; rows overlapping with the previous chunk are held to it, if there is one."""
        strength = None
        if inputs.previous is not None:
            if inputs.options is None:
                raise ValueError("RTC options are required when action is provided to get_action.")
            noise, strength = _hold(noise, widen(inputs.previous, k), inputs.options)
        return denoise(self, noise, widen(inputs.state, k), transformer, embodiment, strength)


def _hold(noise: Tensor, previous: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Begin where the previous chunk ended: initial actions, and (T, 1) how far each step may still move."""
    end, overlap, frozen = (options[name] for name in ("action_horizon", "rtc_overlap_steps", "rtc_frozen_steps"))
    actions = noise.clone()
    actions[:, :overlap] = previous[:, end - overlap : end]
    ramp = torch.linspace(0.0, 1.0, overlap - frozen + 2, device=noise.device)
    ramp = 1 - torch.exp(-options["rtc_ramp_rate"] * ramp)
    strength = noise.new_ones(noise.shape[1], 1)
    strength[:frozen] = 0.0
    strength[frozen:overlap] = (ramp / ramp[-1].clamp_min(1e-8))[1:-1, None]
    return actions, strength


class _Inputs(NamedTuple):
    """Of one call: all that the candidates of a row have in common."""

    context: Tensor
    state: Tensor
    embodiment: Tensor
    encoded: Any
    previous: Tensor | None
    options: dict[str, Any] | None


class GrootAdapter(Adapter):
    """GR00T N1.7."""

    name = "groot"
    shares = "vision-language tokens and their projections in cross-attention"
    seam = GrootSeam
    compiles = True

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
