"""The denoising loop of Fast-WAM, for LeRobot's copy and its own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.families.fastwam import denoiser
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.lengths import call_network, mark_dynamic_lengths
from keystone_robotics.sample.kit.widen import widen

#: Maps the actions (K, T, D) and the step index to their velocity.
Network = Callable[[Tensor, int], Tensor]

#: Returns a denoising step, compiled if enabled; see `Engine.compiled_step`.
Compile = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]


def denoise(
    model: Any,
    noise: Tensor,
    call: Mapping[str, Any],
    given: Mapping[str, Any],
    compiled: Compile,
    shared: bool = False,
) -> Tensor:
    """Noise (K, T, D) to actions.

    Args:
        model: with ``_predict_action_noise_with_cache`` and ``infer_action_scheduler``.
        noise: of all candidates.
        call: arguments of ``infer_action``: the number of denoising steps, and the shift of their times.
        given: arguments of one candidate's step, except actions and time.
        compiled: applied to the step.
        shared: candidates share cache and text; requires `may_share`.
    """
    times, deltas = model.infer_action_scheduler.build_inference_schedule(
        num_inference_steps=call["num_inference_steps"],
        device=model.device,
        dtype=noise.dtype,
        shift_override=call["sigma_shift"],
    )
    network = (shared_network if shared else own_network)(model, given, times, len(noise), compiled)
    actions = noise
    for step, delta in enumerate(deltas):
        actions = model.infer_action_scheduler.step(network(actions, step), delta, actions)
    return actions


def own_network(model: Any, given: Mapping[str, Any], times: Tensor, k: int, compiled: Compile) -> Network:
    """The model's own step, with one row of cache and text per candidate."""
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
    """Whether `shared_network` supports the model and would skip no hook or replaced method."""
    # In this order: compiled steps of an unsupported network must not skip hooks either.
    return may_bypass(engine, denoiser.BYPASS, model.mot) and denoiser.recognises(model)


def shared_network(model: Any, given: Mapping[str, Any], times: Tensor, k: int, compiled: Compile) -> Network:
    """The same on a shared cache and text."""
    run, shared = compiled(denoiser.denoise), denoiser.prepare(model, given, times, k)
    if run is not denoiser.denoise:
        mark_dynamic_lengths(context for layer in shared.layers for context in (layer.video, layer.text))
    return lambda actions, step: run(shared, shared.modulations[step], actions)
