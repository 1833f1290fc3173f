"""Parts of Euler's method on a flow policy, for samplers that do something between its steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from keystone_robotics.select import select
from keystone_study.policies.flow import FlowPolicy

#: Maps state (N, T*D), time and context (N, width) to a velocity (N, T*D).
Velocity = Callable[[Tensor, float, Tensor], Tensor]


def velocity_of(policy: FlowPolicy) -> Velocity:
    """The policy's own velocity, at a time that is the same for all rows."""
    return lambda state, time, context: policy.velocity(state, state.new_full((1,), time), context)


def integrate(
    velocity: Velocity, state: Tensor, context: Tensor, steps: int, first: int = 0, last: int | None = None
) -> Tensor:
    """Steps ``first`` to ``last`` of Euler's method with ``steps`` steps from time 0 to 1."""
    for step in range(first, steps if last is None else last):
        state = state + velocity(state, step / steps, context) / steps
    return state


def clean(velocity: Velocity, state: Tensor, context: Tensor, time: float) -> Tensor:
    """Where the flow would end if it went straight on from here: the prediction of the clean chunk."""
    return state + (1 - time) * velocity(state, time, context)


def derived_noise(noise: Tensor, k: int) -> Tensor:
    """(B, K, T, D): candidate 0 is the given noise (B, T, D); the others follow from its bits, whatever the batch is."""
    rows = []
    for row in noise:
        seed = int.from_bytes(row.flatten()[:2].double().numpy().tobytes()[:7], "little")
        more = torch.randn(k - 1, *row.shape, generator=torch.Generator().manual_seed(seed))
        rows.append(torch.cat([row[None], more.to(row)]))
    return torch.stack(rows)


def antithetic(noises: Tensor) -> Tensor:
    """(B, K, T, D): the second half of the candidates starts from the negative of the first half's noise."""
    half = noises.shape[1] // 2
    return torch.cat([noises[:, :half], -noises[:, :half]], dim=1)


def core(chunks: Tensor, executed: int, share: float = 0.5) -> Tensor:
    """(B, m) indices of the tightest ``share`` of candidates (B, K, T, D), by distances over the executed steps.

    The tightest group is the one around the candidate whose m nearest (itself among them) are the closest to it.
    """
    flat = chunks[:, :, :executed].flatten(2)
    distances = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist")
    m = max(1, round(share * chunks.shape[1]))
    nearest = distances.topk(m, largest=False)
    centre = nearest.values.sum(2).argmin(1)
    return nearest.indices[torch.arange(len(chunks)), centre]


def take(values: Tensor, indices: Tensor) -> Tensor:
    """(B, m, …) of (B, K, …) by (B, m)."""
    return values[torch.arange(len(values))[:, None], indices]


def medoid(chunks: Tensor, executed: int) -> Tensor:
    """(B,) the paper's selection among candidates (B, K, T, D), by distances over the executed steps."""
    return torch.as_tensor(select(chunks[:, :, :executed], "keystone", seed=0).index)
