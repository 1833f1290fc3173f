"""A denoising step of π0 and π0.5 for K candidates on one prefix, for LeRobot's code and openpi's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.families.pi.denoiser import BYPASS, Shared, denoise, prepare
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.lengths import mark_dynamic_lengths
from keystone_robotics.sample.kit.packing import pack, suffix_mask
from keystone_robotics.sample.kit.rounds import is_sharing, once_per_round
from keystone_robotics.sample.override import SamplerOverride


class PiStep(SamplerOverride):
    """On the model, which has a ``paligemma_with_expert`` and an ``action_out_proj``."""

    def _velocity(self, suffix: tuple[Any, ...], prefix_pad_masks: Tensor, past_key_values: Any, steps: int) -> Tensor:
        """The velocity (B * K, T, D) of suffixes as `embed_suffix` returns them, the last ``steps`` tokens of each."""
        tokens, padding, blocks, condition = suffix
        if condition is not None and condition.ndim == 3:  # a time for each token: real-time chunking, mode "trained"
            condition = condition.reshape(prefix_pad_masks.shape[0], -1, condition.shape[-1])
        elif condition is not None:  # embedded time, equal for all candidates of a row
            condition = condition[:: tokens.shape[0] // prefix_pad_masks.shape[0]]
        # A sampler that is compiled as a whole takes the plain path; reading the context variable would break its graph.
        if not torch.compiler.is_compiling() and is_sharing():
            shared = once_per_round(
                lambda: self._prepare(prefix_pad_masks, past_key_values, suffix_mask(padding[:1], blocks[:1])[0])
            )
            hidden = self._keystone.compiled_step(denoise)(shared, tokens, condition)
        else:
            hidden = self._keystone.compiled_step(PiStep._packed)(
                self, tokens, padding, blocks, condition, prefix_pad_masks, past_key_values
            )
        hidden = hidden.reshape(*tokens.shape[:2], -1)[:, -steps:]
        return self.action_out_proj(hidden.to(torch.float32))

    def _prepare(self, prefix_pad_masks: Tensor, past_key_values: Any, visible: Tensor) -> Shared:
        """The values that the steps of a round share on the fast path."""
        expert = self.paligemma_with_expert.gemma_expert.model
        shared = prepare(expert, prefix_pad_masks, _by_layer(past_key_values), visible)
        if self._keystone.compile:
            mark_dynamic_lengths(shared.contexts)
        return shared

    def _packed(
        self,
        tokens: Tensor,
        padding: Tensor,
        blocks: Tensor,
        condition: Tensor | None,
        prefix_pad_masks: Tensor,
        past_key_values: Any,
    ) -> Tensor:
        """The expert's own code on packed suffixes: (B, K * S, E)."""
        packed = pack(tokens, padding, blocks, prefix_pad_masks)
        experts = self.paligemma_with_expert
        experts.gemma_expert.model.config._attn_implementation = "eager"
        (_, hidden), _ = experts.forward(
            attention_mask=self._additive_mask(packed.mask),
            position_ids=packed.positions,
            past_key_values=self._read_only_cache(past_key_values),
            inputs_embeds=[None, packed.tokens],
            use_cache=False,
            adarms_cond=[None, condition],
        )
        return hidden

    def may_share(self) -> bool:
        """Whether the fast path would skip no hook or replaced method."""
        return may_bypass(self._keystone, BYPASS, self.paligemma_with_expert)

    def _additive_mask(self, mask: Tensor) -> Tensor:
        """A bool mask (B, L, M) as the bias (B, 1, L, M) that the model's code adds to scores."""
        raise NotImplementedError

    def _read_only_cache(self, cache: Any) -> Any:
        """The cache in a form that the expert's code does not change."""
        raise NotImplementedError


def _by_layer(cache: Any) -> Any:
    """A cache with ``cache.layers[0].keys``, as in transformers 5; openpi pins a version with ``cache.key_cache[0]``."""
    if hasattr(cache, "layers"):
        return cache
    pairs = zip(cache.key_cache, cache.value_cache, strict=True)
    return SimpleNamespace(layers=[SimpleNamespace(keys=keys, values=values) for keys, values in pairs])
