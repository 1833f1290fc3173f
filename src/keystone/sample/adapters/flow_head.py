"""The denoising loop that GR00T's flow-matching action heads share, whoever ships them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: Maps tokens (B * K, S, E) and the time of each row (B * K,) to as many tokens.
Network = Callable[[Tensor, Tensor], Tensor]


def denoise(
    head: Any,
    actions: Tensor,
    network: Network,
    prefix: Tensor | None,
    embodiment: tuple[Tensor, ...] = (),
    strength: Tensor | float = 1.0,
) -> Tensor:
    """Noise (B * K, T, D) to actions, by Euler steps from time 0 to 1.

    Args:
        head: with ``action_encoder``, ``action_decoder`` and the settings of the loop.
        actions: the initial noise.
        network: the head's transformer with its context, one row per candidate or folded.
        prefix: (B * K, P, E) tokens before those of the actions (state, future tokens), or None.
        embodiment: (B * K,) which robot, where encoder and decoder have weights for several.
        strength: factor on the velocity, (B * K, T, D) where steps are held to a previous chunk.
    """
    count = head.num_inference_timesteps
    for step in range(count):
        times = torch.full(
            actions.shape[:1], int(step / float(count) * head.num_timestep_buckets), device=actions.device
        )
        tokens = head.action_encoder(actions, times, *embodiment)
        if head.config.add_pos_embed:
            tokens = tokens + head.position_embedding(torch.arange(tokens.shape[1], device=tokens.device))
        hidden = network(tokens if prefix is None else torch.cat((prefix, tokens), dim=1), times)
        velocity = head.action_decoder(hidden, *embodiment)[:, -head.action_horizon :]
        actions = actions + 1.0 / count * velocity * strength
    return actions


def with_future_tokens(head: Any, state: Tensor | None, rows: int) -> Tensor:
    """(rows, P, E) the state's tokens, if there are any, and the head's learned ones."""
    future = head.future_tokens.weight.expand(rows, -1, -1)
    return future if state is None else torch.cat((state, future), dim=1)
