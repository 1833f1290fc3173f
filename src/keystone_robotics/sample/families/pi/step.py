"""A denoising step of π0 and π0.5 for K candidates on one prefix: what LeRobot's code and openpi's have in common."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.families.pi.denoiser import BYPASS, Shared, denoise, prepare
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.lengths import lengths_vary
from keystone_robotics.sample.kit.packing import pack, visible_among
from keystone_robotics.sample.kit.rounds import is_sharing, once_per_round
from keystone_robotics.sample.override import SamplerOverride


class PiStep(SamplerOverride):
    """On the model, which has a ``paligemma_with_expert`` and an ``action_out_proj``."""

    def _velocity(self, suffix: tuple[Any, ...], prefix_pad_masks: Tensor, past_key_values: Any, steps: int) -> Tensor:
        """The velocity (B * K, T, D) of suffixes as `embed_suffix` returns them, the last ``steps`` tokens of each."""
        tokens, padding, blocks, condition = suffix
        if condition is not None:  # of the time, which all candidates of a row share
            condition = condition[:: tokens.shape[0] // prefix_pad_masks.shape[0]]
        # A sampler that is compiled as a whole takes the plain path, and asking which it is would break its graph.
        if not torch.compiler.is_compiling() and is_sharing():
            shared = once_per_round(
                lambda: self._prepare(prefix_pad_masks, past_key_values, visible_among(padding[:1], blocks[:1])[0])
            )
            hidden = self._keystone.compiled_step(denoise)(shared, tokens, condition)
        else:
            hidden = self._keystone.compiled_step(PiStep._packed)(
                self, tokens, padding, blocks, condition, prefix_pad_masks, past_key_values
            )
        hidden = hidden.reshape(*tokens.shape[:2], -1)[:, -steps:]
        return self.action_out_proj(hidden.to(torch.float32))

    def _prepare(self, prefix_pad_masks: Tensor, past_key_values: Any, visible: Tensor) -> Shared:
        """What the steps of a round on the fast path have in common."""
        expert = self.paligemma_with_expert.gemma_expert.model
        shared = prepare(expert, prefix_pad_masks, _by_layer(past_key_values), visible)
        if self._keystone.compile:
            lengths_vary(shared.contexts)
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
            attention_mask=self._added_to_scores(packed.mask),
            position_ids=packed.positions,
            past_key_values=self._only_read(past_key_values),
            inputs_embeds=[None, packed.tokens],
            use_cache=False,
            adarms_cond=[None, condition],
        )
        return hidden

    def _may_share(self) -> bool:
        """Whether nothing was put on the network that the fast path bypasses."""
        return may_bypass(self._keystone, BYPASS, self.paligemma_with_expert)

    def _added_to_scores(self, mask: Tensor) -> Tensor:
        """A mask (B, L, M) of what is visible as the model's code adds it to scores: (B, 1, L, M)."""
        raise NotImplementedError

    def _only_read(self, cache: Any) -> Any:
        """A cache that the expert's code does not append to."""
        raise NotImplementedError


def _by_layer(cache: Any) -> Any:
    """A cache as transformers has them today (``cache.layers[0].keys``): openpi pins a version with ``cache.key_cache[0]``."""
    if hasattr(cache, "layers"):
        return cache
    pairs = zip(cache.key_cache, cache.value_cache, strict=True)
    return SimpleNamespace(layers=[SimpleNamespace(keys=keys, values=values) for keys, values in pairs])
