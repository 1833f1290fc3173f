"""The denoising loop of GR00T's flow-matching action heads, in LeRobot, Isaac-GR00T and StarVLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.families.groot.denoiser import BYPASS, SharedDiT, recognises, run_network
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.lengths import call_network, mark_dynamic_lengths

#: Maps tokens (B * K, S, E) and the step index to tokens of the same shape.
Network = Callable[[Tensor, int], Tensor]


def denoise(
    head: Any,
    actions: Tensor,
    network: Network,
    prefix: Tensor | None,
    embodiment: tuple[Tensor, ...] = (),
    strength: Tensor | float = 1.0,
) -> Tensor:
    """Noise (B * K, T, D) to actions, by Euler steps from time 0 to 1.

    Encoder and decoder gather the weights of an embodiment for every row. If ``embodiment`` has one entry per observation,
    the K candidates of an observation are concatenated into one row there, and its weights are gathered once.

    Args:
        head: with ``action_encoder``, ``action_decoder`` and the settings of the loop.
        actions: the initial noise.
        network: the head's transformer with its context, from `own_network` or `shared_network`.
        prefix: (B * K, P, E) tokens before those of the actions (state, future tokens), or None.
        embodiment: (B,) or (B * K,) embodiment ids, if encoder and decoder have weights for several robots.
        strength: factor on the velocity, (T, 1) if steps are constrained to a previous chunk.
    """
    rows = len(embodiment[0]) if embodiment else len(actions)
    for step, time in enumerate(step_times(head)):
        times = torch.full((rows,), time, device=actions.device)
        tokens = _on_rows(rows, actions, head.action_encoder, times, *embodiment)
        if head.config.add_pos_embed:
            tokens = tokens + head.position_embedding(torch.arange(tokens.shape[1], device=tokens.device))
        hidden = network(tokens if prefix is None else torch.cat((prefix, tokens), dim=1), step)
        velocity = _on_rows(rows, hidden[:, -head.action_horizon :], head.action_decoder, *embodiment)
        actions = actions + 1.0 / head.num_inference_timesteps * velocity * strength
    return actions


def step_times(head: Any) -> list[int]:
    """The time of every step, in buckets.

    >>> from types import SimpleNamespace
    >>> step_times(SimpleNamespace(num_inference_timesteps=4, num_timestep_buckets=1000))
    [0, 250, 500, 750]
    """
    count = head.num_inference_timesteps
    return [int(step / float(count) * head.num_timestep_buckets) for step in range(count)]


def own_network(head: Any, context: Any, call: Callable[..., Tensor] = call_network, **options: Any) -> Network:
    """The head's transformer in its own code, on a context with a row for each candidate."""
    run, times = head._keystone.compiled_step(call), step_times(head)

    def network(tokens: Tensor, step: int) -> Tensor:
        time = torch.full(tokens.shape[:1], times[step], device=tokens.device)
        return run(head.model, hidden_states=tokens, encoder_hidden_states=context, timestep=time, **options)

    return network


def may_share(head: Any) -> bool:
    """Whether `shared_network` supports the head's transformer and would skip no hook or replaced method."""
    # In this order: compiled steps of an unsupported network must not skip hooks either.
    return may_bypass(head._keystone, BYPASS, head.model) and recognises(head.model)


def shared_network(head: Any, context: Tensor, mask: Tensor | None = None, image_mask: Tensor | None = None) -> Network:
    """The head's transformer on a shared context (B, L, E); requires `may_share`."""
    times = torch.tensor(step_times(head), device=context.device)
    network = SharedDiT(head.model, context, times, mask, image_mask, run=head._keystone.compiled_step(run_network))
    if head._keystone.compile:
        mark_dynamic_lengths(one for one in network.keys_values if one is not None)
    return network


def with_future_tokens(head: Any, state: Tensor | None, rows: int) -> Tensor:
    """(rows, P, E) the state's tokens, if any, and the head's learned future tokens."""
    future = head.future_tokens.weight.expand(rows, -1, -1)
    return future if state is None else torch.cat((state, future), dim=1)


def _on_rows(rows: int, values: Tensor, network: Callable[..., Tensor], *settings: Tensor) -> Tensor:
    """Apply a tokenwise network to (B * K, T, D) values, reshaped to (rows, ..., D)."""
    folded = network(values.reshape(rows, -1, values.shape[-1]), *settings)
    return folded.reshape(*values.shape[:2], folded.shape[-1])
