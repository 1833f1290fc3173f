"""A denoising step of π0 and π0.5 for K candidates on one prefix, for LeRobot's code and openpi's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from keystone_robotics.sample.families.pi import denoiser
from keystone_robotics.sample.kit.packing import Packed, PackedStep


class PiStep(PackedStep):
    """On the model, which has a ``paligemma_with_expert`` and an ``action_out_proj``."""

    _denoiser = denoiser
    _experts = "paligemma_with_expert"

    def _velocity(self, suffix: tuple[Any, ...], prefix_pad_masks: Tensor, past_key_values: Any, steps: int) -> Tensor:
        *tokens, condition = suffix
        if condition is not None and condition.ndim == 3:  # a time for each token: real-time chunking, mode "trained"
            condition = condition.reshape(prefix_pad_masks.shape[0], -1, condition.shape[-1])
        elif condition is not None:  # embedded time, equal for all candidates of a row
            condition = condition[:: tokens[0].shape[0] // prefix_pad_masks.shape[0]]
        return super()._velocity((*tokens, condition), prefix_pad_masks, past_key_values, steps)

    def _own_expert(self, packed: Packed, past_key_values: Any, *condition: Any) -> Tensor:
        experts = self.paligemma_with_expert
        experts.gemma_expert.model.config._attn_implementation = "eager"
        (_, hidden), _ = experts.forward(
            attention_mask=self._additive_mask(packed.mask),
            position_ids=packed.positions,
            past_key_values=self._read_only_cache(past_key_values),
            inputs_embeds=[None, packed.tokens],
            use_cache=False,
            adarms_cond=[None, *condition],
        )
        return hidden

    def _additive_mask(self, mask: Tensor) -> Tensor:
        """A bool mask (B, L, M) as the bias (B, 1, L, M) that the model's code adds to scores."""
        raise NotImplementedError

    def _read_only_cache(self, cache: Any) -> Any:
        """The cache in a form that the expert's code does not change."""
        raise NotImplementedError
