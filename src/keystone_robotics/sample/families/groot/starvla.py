"""StarVLA's own code: its flow-matching heads, on the last layer of the vision-language model or on every layer."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families.groot.denoiser import CONTEXT, attention_targets, run_blocks
from keystone_robotics.sample.families.groot.flow_head import (
    Network,
    denoise,
    may_share,
    own_network,
    shared_network,
    step_times,
    with_future_tokens,
)
from keystone_robotics.sample.families.groot.layerwise_denoiser import SharedLayers
from keystone_robotics.sample.kit.lengths import mark_dynamic_lengths
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class StarVLAOverride(SamplerOverride):
    """On ``framework.action_model``. ``predict_action_realtime`` runs as it is, with one candidate."""

    @torch.no_grad()
    def predict_action(self, *args: Any, **kwargs: Any) -> Tensor:
        predict = super().predict_action  # type: ignore[misc]
        own = partial(predict, *args, **kwargs)
        if self._keystone.untouched:
            return self._keystone.run_single(own)
        # The first argument is vl_embs or vl_embs_list; older versions take no mask.
        context, *_ = given = inspect.signature(predict).bind(*args, **kwargs).arguments
        context, state, mask = given[context], given.get("state"), given.get("encoder_attention_mask")
        if hasattr(self, "_normalize_encoder_states"):  # QwenPI_v4: one context for every layer, or one for each
            context = self._normalize_encoder_states(context)
        first = context[0] if isinstance(context, (list, tuple)) else context

        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            encoded = None if state is None else widen(self.state_encoder(state), k)
            prefix = with_future_tokens(self, encoded, len(noise))
            network = self._shared(context, mask) if shared else self._network(context, mask, k)
            return denoise(self, noise, network, prefix)

        sharing = may_share(self) and (mask is None or mask.dtype == torch.bool)
        # Older heads run only as many blocks as there are contexts.
        sharing = sharing and (isinstance(context, Tensor) or len(context) == len(self.model.transformer_blocks))
        return self._keystone.run(
            SampleRequest(
                single=own,
                wide=draw,
                shared=partial(draw, shared=True) if sharing else None,
                noise=NoiseSpec.like(first, (self.action_horizon, self.action_dim)),
            )
        )

    def _network(self, context: Any, mask: Tensor | None, k: int) -> Network:
        """The head's transformer on tokens (B, L, E), or on a list with one entry per layer."""
        masks = {} if mask is None else {"encoder_attention_mask": widen(mask, k)}
        if isinstance(context, Tensor):
            return own_network(self, widen(context, k), **masks)
        layers = [widen(layer, k) for layer in context]
        if self._runs_layers_itself():
            return own_network(self, layers, return_pre_output=True, **masks)
        return own_network(self, layers, _by_layer)

    def _shared(self, context: Any, mask: Tensor | None) -> Network:
        """The same on a shared context."""
        if isinstance(context, Tensor):
            return shared_network(self, context, mask)
        targets = attention_targets(self.model) if self._runs_layers_itself() else [CONTEXT] * len(context)
        times = torch.tensor(step_times(self), device=context[0].device)
        network = SharedLayers(self.model, context, targets, times, mask, run=self._keystone.compiled_step(run_blocks))
        if self._keystone.compile:
            mark_dynamic_lengths(one for one in network.keys_values if one is not None)
        return network

    def _runs_layers_itself(self) -> bool:
        """Whether the transformer takes one context per layer; in older versions the head runs the loop."""
        return "return_pre_output" in inspect.signature(self.model.forward).parameters


def _by_layer(network: Any, hidden_states: Tensor, encoder_hidden_states: Sequence[Tensor], timestep: Tensor) -> Tensor:
    """The loop of older heads: each block with its own layer of the context."""
    time = network.timestep_encoder(timestep)
    for block, layer in zip(network.transformer_blocks, encoder_hidden_states, strict=False):
        hidden_states = block(hidden_states=hidden_states, encoder_hidden_states=layer, temb=time)
    return hidden_states


class StarVLAAdapter(Adapter):
    """StarVLA's GR00T and π heads (QwenGR00T, QwenPI and those built like them)."""

    name = "starvla"
    shared_context = (
        "vision-language tokens, of the last layer or of every layer, and their projections in cross-attention (one copy, "
        "independent of K)"
    )
    project = "StarVLA"
    recognised_by = ("predict_action", "future_tokens", "action_encoder", "action_decoder", "num_inference_timesteps")
    steps = "num_inference_timesteps"
    steps_by_default = "4"
    compiles = True
    override = StarVLAOverride

    def module(self, policy: Any) -> Any:
        return _head(policy)

    def refuse(self, policy: Any) -> str:
        if hasattr(_head(policy), "t_eps"):
            return "the head predicts actions, not velocities (ABot-M0), which the adapter does not support: use site="
        return ""


def _head(policy: Any) -> Any:
    return getattr(policy, "action_model", policy)
