"""The denoising loop of Fast-WAM's actions, in LeRobot's copy and in its own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.families.fastwam import denoiser
from keystone_robotics.sample.families.groot.flow_head import call_network
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.lengths import lengths_vary
from keystone_robotics.sample.kit.widen import widen

#: Maps the actions (K, T, D) and the number of the step to their velocity.
Network = Callable[[Tensor, int], Tensor]

#: A denoising step to one that may be compiled, see `Engine.compiled_step`.
Compile = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]


def denoise(
    model: Any,
    noise: Tensor,
    count: int,
    shift: float | None,
    given: Mapping[str, Any],
    compiled: Compile,
    shared: bool = False,
) -> Tensor:
    """Noise (K, T, D) to actions.

    Args:
        model: with ``_predict_action_noise_with_cache`` and ``infer_action_scheduler``.
        noise: of all candidates.
        count: steps.
        shift: of their times; None for the model's own.
        given: what the step of one candidate is called with, apart from actions and time.
        compiled: applied to the step.
        shared: candidates share cache and text, where they `may_share`.
    """
    times, deltas = model.infer_action_scheduler.build_inference_schedule(
        num_inference_steps=count, device=model.device, dtype=noise.dtype, shift_override=shift
    )
    network = (shared_network if shared else own_network)(model, given, times, len(noise), compiled)
    actions = noise
    for step, delta in enumerate(deltas):
        actions = model.infer_action_scheduler.step(network(actions, step), delta, actions)
    return actions


def own_network(model: Any, given: Mapping[str, Any], times: Tensor, k: int, compiled: Compile) -> Network:
    """The model's own step, on a cache and a text with a row for each candidate."""
    run, wide = compiled(call_network), {name: widen(given[name], k) for name in ("context", "context_mask")}
    cache = [{name: widen(tensor, k) for name, tensor in layer.items()} for layer in given["video_kv_cache"]]

    def network(actions: Tensor, step: int) -> Tensor:
        return run(
            model._predict_action_noise_with_cache,
            **{**given, **wide, "video_kv_cache": cache},
            latents_action=actions,
            timestep_action=times[step : step + 1].to(actions),
        )

    return network


def may_share(engine: Engine, model: Any) -> bool:
    """Whether `shared_network` computes what the model does, and bypasses nothing that was put on it."""
    # In this order: compiled steps of a network that is not recognised must not pass hooks by either.
    return may_bypass(engine, denoiser.BYPASS, model.mot) and denoiser.recognises(model)


def shared_network(model: Any, given: Mapping[str, Any], times: Tensor, k: int, compiled: Compile) -> Network:
    """The same on a cache and a text that the candidates share."""
    run, shared = compiled(denoiser.denoise), denoiser.prepare(model, given, times, k)
    if run is not denoiser.denoise:
        lengths_vary(seen for layer in shared.layers for seen in (layer.video, layer.text))
    return lambda actions, step: run(shared, shared.modulations[step], actions)
