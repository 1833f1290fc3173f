"""The denoising loop around a GR00T-type transformer: actions are encoded, attended with, decoded to a velocity, followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def denoise(
    head: Any,
    noise: Tensor,
    before: Tensor,
    transformer: Callable[[Tensor, int], Tensor],
    embodiment: Tensor | None = None,
    strength: Tensor | None = None,
) -> Tensor:
    """Noise to actions, by equal steps along the velocity.

    An embodiment has weights of its own, which the head copies out for every row it is given. Where ``embodiment`` has B
    entries instead of B * K, the K candidates of an observation are encoded and decoded as one long row: one copy for all.

    Args:
        head: an action head of Isaac-GR00T, LeRobot or StarVLA.
        noise: (B * K, T, D).
        before: (B * K, M, E) tokens in front of the actions: the state, and StarVLA's learned ones.
        transformer: (B * K, M + T, E) tokens and the number of the step to as many outputs.
        embodiment: (B,) or (B * K,) ids; None for heads without embodiments.
        strength: (T, D) or the like, a factor on the velocity; None if it is 1.

    Returns:
        (B * K, T, D)
    """
    rows = noise.shape[0] if embodiment is None else embodiment.shape[0]
    kinds = () if embodiment is None else (embodiment,)
    actions, steps = noise, head.num_inference_timesteps
    for step, time in enumerate(step_times(head)):
        times = torch.full((rows,), time, device=noise.device)
        features = _on_rows(rows, actions, head.action_encoder, times, *kinds)
        if head.config.add_pos_embed:
            places = torch.arange(features.shape[1], dtype=torch.long, device=noise.device)
            features = features + head.position_embedding(places)
        hidden = transformer(torch.cat((before, features), dim=1), step)[:, -noise.shape[1] :]
        velocity = _on_rows(rows, hidden, head.action_decoder, *kinds)
        actions = actions + velocity * (1.0 / steps if strength is None else strength / steps)
    return actions


def step_times(head: Any) -> list[int]:
    """The time of every step, in the buckets in which the network counts it.

    >>> from types import SimpleNamespace
    >>> step_times(SimpleNamespace(num_inference_timesteps=4, num_timestep_buckets=1000))
    [0, 250, 500, 750]
    """
    steps = head.num_inference_timesteps
    return [int(step / float(steps) * head.num_timestep_buckets) for step in range(steps)]


def run_network(network: Callable[..., Tensor], **inputs: Tensor) -> Tensor:
    """A step of a network as it is; a function, so that it can be compiled (see `Session.step`)."""
    return network(**inputs)


def _on_rows(rows: int, values: Tensor, network: Callable[..., Tensor], *settings: Tensor) -> Tensor:
    """Apply a network that treats tokens one by one to (B * K, T, D) values as if they were (rows, ..., D)."""
    folded = network(values.reshape(rows, -1, values.shape[-1]), *settings)
    return folded.reshape(*values.shape[:2], folded.shape[-1])
