"""Samplers that look at several candidates before, between or after the steps of the flow.

Each maps a flow policy, a context (B, width) and noise (B, T, D) to chunks (B, T, D), normalised. ``k`` is the number of
candidates, ``steps`` that of Euler's method.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor

from keystone_study.methods.flow import (
    antithetic,
    clean,
    core,
    derived_noise,
    integrate,
    medoid,
    take,
    velocity_of,
)
from keystone_study.policies.flow import FlowConfig, FlowPolicy
from keystone_study.scorers.scorer import Scorer
from keystone_study.scorers.store import load_scorer


def _wide(context: Tensor, noises: Tensor) -> tuple[Tensor, Tensor]:
    """State (B*K, T*D) and context (B*K, width) of noises (B, K, T, D)."""
    return noises.flatten(2).flatten(0, 1), context.repeat_interleave(noises.shape[1], 0)


def rescaled(policy: FlowPolicy, context: Tensor, noise: Tensor, steps: int, factor: float, sigma: float) -> Tensor:
    """One sample of a sharper distribution: temporal score rescaling (TSR), arXiv 2510.01184.

    The score at time t is multiplied by (η σ² + 1) / (η σ² / factor + 1), η = t² / (1 − t)² being the signal-to-noise ratio.

    Args:
        factor: by which the variance of a mode is divided.
        sigma: standard deviation of a mode, in units of the normalised chunk.
    """
    own = velocity_of(policy)

    def velocity(state: Tensor, time: float, context: Tensor) -> Tensor:
        if time == 0.0:
            return own(state, time, context)
        ratio = time**2 / (1 - time) ** 2 * sigma**2
        scale = (ratio + 1) / (ratio / factor + 1)
        # x = x₀ + t v, x₀ being the expected noise; the score is −x₀ / (1 − t).
        return (state - scale * (state - time * own(state, time, context))) / time

    return integrate(velocity, noise.flatten(1), context, steps).reshape(noise.shape)


def ticket(policy: FlowPolicy, context: Tensor, noise: Tensor, steps: int, seed: int) -> Tensor:
    """One constant noise in every round (golden ticket, arXiv 2603.15757), by its seed."""
    constant = torch.randn(noise.shape[1:], generator=torch.Generator().manual_seed(seed)).to(noise)
    return integrate(velocity_of(policy), constant.expand_as(noise).flatten(1), context, steps).reshape(noise.shape)


def scored(policy: FlowPolicy, context: Tensor, noise: Tensor, k: int, steps: int, scorer: str) -> Tensor:
    """The candidate that a learned scorer likes best, by the folder of the scorer."""
    noises = derived_noise(noise, k)
    state, wide = _wide(context, noises)
    chunks = integrate(velocity_of(policy), state, wide, steps).reshape(noises.shape)
    best = _scorer(Path(scorer), policy.config).score(context, chunks).argmax(1)
    return chunks[torch.arange(len(chunks)), best]


@functools.lru_cache(maxsize=8)
def _scorer(folder: Path, config: FlowConfig) -> Scorer:
    return load_scorer(folder, config)


def partial(
    policy: FlowPolicy, context: Tensor, noise: Tensor, k: int, steps: int, after: int, finish: str = "winner"
) -> Tensor:
    """Select after some steps, by the predicted clean chunks, and finish only the winner, or the core and average it."""
    executed, velocity = policy.config.n_action_steps, velocity_of(policy)
    state, wide = _wide(context, derived_noise(noise, k))
    state = integrate(velocity, state, wide, steps, last=after)
    predicted = clean(velocity, state, wide, after / steps).reshape(len(noise), k, *noise.shape[1:])
    states = state.reshape(len(noise), k, -1)
    if finish == "winner":
        kept = states[torch.arange(len(noise)), medoid(predicted, executed)]
        return integrate(velocity, kept, context, steps, after).reshape(noise.shape)
    chosen = take(states, core(predicted, executed))
    state, wide = chosen.flatten(0, 1), context.repeat_interleave(chosen.shape[1], 0)
    return integrate(velocity, state, wide, steps, after).reshape(*chosen.shape[:2], *noise.shape[1:]).mean(1)


def core_mean(
    policy: FlowPolicy,
    context: Tensor,
    noise: Tensor,
    k: int,
    steps: int,
    temperatures: str = "1",
    share: float = 0.5,
    paired: int = 0,
) -> Tensor:
    """The mean of the core, from candidates at several temperatures, or in antithetic pairs."""
    noises = derived_noise(noise, k)
    noises = antithetic(noises) if paired else noises
    scales = [float(value) for value in temperatures.split("-")]
    noises = noises * torch.tensor([scales[j % len(scales)] for j in range(k)]).to(noise)[None, :, None, None]
    state, wide = _wide(context, noises)
    chunks = integrate(velocity_of(policy), state, wide, steps).reshape(noises.shape)
    return take(chunks, core(chunks, policy.config.n_action_steps, share)).mean(1)


def from_core_noise(
    policy: FlowPolicy,
    context: Tensor,
    noise: Tensor,
    k: int,
    steps: int,
    final: int,
    start: str = "mean",
    scale: float = 1.0,
) -> Tensor:
    """Seek the mode in the space of noise: a last draw from the mean noise of the core, or from its medoid's noise, cooled.

    Args:
        steps: of the candidates.
        final: steps of the last draw.
        start: "mean" or "medoid".
        scale: factor on the noise of the last draw.
    """
    noises, velocity = derived_noise(noise, k), velocity_of(policy)
    state, wide = _wide(context, noises)
    chunks = integrate(velocity, state, wide, steps).reshape(noises.shape)
    if start == "mean":
        begin = take(noises, core(chunks, policy.config.n_action_steps)).mean(1)
    else:
        begin = noises[torch.arange(len(noise)), medoid(chunks, policy.config.n_action_steps)]
    return integrate(velocity, scale * begin.flatten(1), context, final).reshape(noise.shape)


def consensus(policy: FlowPolicy, context: Tensor, noise: Tensor, k: int, steps: int) -> Tensor:
    """Keep the core after each step, by the predicted clean chunks, and continue from it and from a copy with other noise; the
    mean of the last core.
    """
    executed, velocity = policy.config.n_action_steps, velocity_of(policy)
    state, wide = _wide(context, derived_noise(noise, k))
    shape = (len(noise), k, *noise.shape[1:])
    fresh = derived_noise(-noise, k).flatten(2)
    for step in range(steps):
        state = integrate(velocity, state, wide, steps, step, step + 1)
        time = (step + 1) / steps
        if time == 1.0:
            break
        predicted = clean(velocity, state, wide, time).reshape(shape)
        kept = core(predicted, executed)
        ends = take(predicted.flatten(2), kept)
        again = time * ends + (1 - time) * take(fresh, kept)  # the same ends, other noise
        state = torch.cat([take(state.reshape(len(noise), k, -1), kept), again], 1).flatten(0, 1)
    chunks = state.reshape(shape)
    return take(chunks, core(chunks, executed)).mean(1)


def projected(
    policy: FlowPolicy, context: Tensor, noise: Tensor, k: int, steps: int, back: float, again: int
) -> Tensor:
    """The core's mean, brought back onto what the policy would do: noised to time ``back``, denoised in ``again`` steps."""
    velocity = velocity_of(policy)
    mean = core_mean(policy, context, noise, k, steps).flatten(1)
    state = back * mean + (1 - back) * noise.flatten(1)
    for step in range(again):
        time = back + (1 - back) * step / again
        state = state + velocity(state, time, context) * (1 - back) / again
    return state.reshape(noise.shape)
