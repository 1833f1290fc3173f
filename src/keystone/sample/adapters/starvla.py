"""StarVLA's own code: its flow-matching heads, on the last layer of the vision-language model or on every layer."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone.sample.adapter import Adapter, Seam, Window
from keystone.sample.adapters.flow_head import Network, denoise, with_future_tokens
from keystone.sample.widen import widen


class StarVLASeam(Seam):
    """On ``framework.action_model``. ``predict_action_realtime`` runs as it is, with one candidate."""

    @torch.no_grad()
    def predict_action(self, *args: Any, **kwargs: Any) -> Tensor:
        predict = super().predict_action  # type: ignore[misc]
        own = partial(predict, *args, **kwargs)
        # The context is called vl_embs or vl_embs_list; older versions take no mask.
        context, *_ = given = inspect.signature(predict).bind(*args, **kwargs).arguments
        context, state, mask = given[context], given.get("state"), given.get("encoder_attention_mask")
        first = context[0] if isinstance(context, (list, tuple)) else context

        def draw(noise: Tensor, k: int) -> Tensor:
            encoded = None if state is None else widen(self.state_encoder(state), k)
            prefix = with_future_tokens(self, encoded, len(noise))
            return denoise(self, noise, self._network(context, mask, k), prefix)

        return self._keystone.round(
            own,
            draw,
            batch=first.shape[0],
            shape=(self.action_horizon, self.action_dim),
            device=first.device,
            dtype=first.dtype,
        )

    def _network(self, context: Any, mask: Tensor | None, k: int) -> Network:
        """The head's transformer on tokens (B, L, E), or on a list of them, one for each of its layers."""
        masks = {} if mask is None else {"encoder_attention_mask": widen(mask, k)}
        if isinstance(context, Tensor):
            whole = widen(context, k)
            return lambda tokens, times: self.model(
                hidden_states=tokens, encoder_hidden_states=whole, timestep=times, **masks
            )
        layers = [widen(layer, k) for layer in context]
        if "return_pre_output" in inspect.signature(self.model.forward).parameters:
            return lambda tokens, times: self.model(
                hidden_states=tokens, encoder_hidden_states=layers, timestep=times, return_pre_output=True, **masks
            )

        def by_layer(tokens: Tensor, times: Tensor) -> Tensor:
            time = self.model.timestep_encoder(times)
            for block, layer in zip(self.model.transformer_blocks, layers, strict=False):
                tokens = block(hidden_states=tokens, encoder_hidden_states=layer, temb=time)
            return tokens

        return by_layer


class StarVLAAdapter(Adapter):
    """StarVLA's GR00T and π heads (QwenGR00T, QwenPI and those built like them)."""

    name = "starvla"
    shares = "vision-language tokens, of the last layer or of every layer"
    home = "StarVLA"
    seam = StarVLASeam

    def owns(self, policy: Any) -> bool:
        names = ("predict_action", "future_tokens", "action_encoder", "action_decoder", "num_inference_timesteps")
        return all(hasattr(_head(policy), name) for name in names)

    def module(self, policy: Any) -> Any:
        return _head(policy)

    def window(self, config: Any) -> Window | None:
        return None  # action_dim is the robot's own; how much of a chunk is executed, only the client knows

    def refuse(self, policy: Any) -> str:
        if hasattr(_head(policy), "t_eps"):
            return (
                "the head predicts actions, not velocities (ABot-M0): that loop is not known here. Name it with site="
            )
        return ""


def _head(policy: Any) -> Any:
    return getattr(policy, "action_model", policy)
