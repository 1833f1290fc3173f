"""The sampling block that CogACT, InternVLA-M1 and Dexbotic have in common: OpenAI's Gaussian diffusion around a DiT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.noise import preserve_rng
from keystone_robotics.sample.override import Hook, SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest

#: Arguments of the loops that change nothing but their progress bars, or where they run.
HARMLESS = ("clip_denoised", "denoised_fn", "device", "progress", "eta")


class LoopHook(Hook):
    """The action model's ``diffusion`` and ``ddim_diffusion``: objects whose loops are overridden, made when they are read.

    The second one is created in the first call.
    """

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        if instance is None:
            return self
        own = vars(instance).get(self._name)
        return None if own is None else Loops(own, partial(self._call, instance))


class Loops:
    """A diffusion object with overridden loops; everything else is its own."""

    def __init__(self, own: Any, call: Callable[..., Tensor]) -> None:
        self._own, self._call = own, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def ddim_sample_loop(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._call(self._own.ddim_sample_loop, *args, **kwargs)

    def p_sample_loop(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._call(self._own.p_sample_loop, *args, **kwargs)


def _sample(
    head: Any,
    own: Callable[..., Tensor],
    model: Callable[..., Tensor],
    shape: tuple[int, ...],
    noise: Tensor | None = None,
    *,
    model_kwargs: dict[str, Any],
    **options: Any,
) -> Tensor:
    """A round on ``own(model, shape, noise, model_kwargs=...)``, the loop over denoising steps.

    With classifier-free guidance the caller has doubled the rows: (2B, T, D) noise, conditions after which come the
    unconditional ones, and it drops the second half of the result.
    """
    engine = head._keystone
    ddim, guided = own.__name__ == "ddim_sample_loop", "cfg_scale" in model_kwargs
    loop = own if engine.steps is None else _loop_in_steps(head, ddim, engine.steps)
    batch = shape[0] // 2 if guided else shape[0]
    if engine.untouched:
        single = partial(loop, model, shape, noise, model_kwargs=model_kwargs, **options)
        return engine.run_single(single, lambda value: value[:batch])
    unknown = sorted({*model_kwargs} - {"z", "cfg_scale"} | {*options} - {*HARMLESS})
    if unknown or noise is None:
        raise KeystoneError(
            f"cogact: the sampling loop takes {', '.join(unknown) or 'no noise'}, which the adapter does not know: the code "
            "has changed"
        )
    z = model_kwargs["z"]
    scale = {name: value for name, value in model_kwargs.items() if name != "z"}
    stochastic = not ddim or bool(options.get("eta"))

    def denoise_rows(noise: Tensor, conditions: Tensor) -> Tensor:
        """(R, T, D) from noise (R, T, D), with the conditions of all rows."""
        if guided and stochastic:
            # Noise at every step is for R rows: guidance uses none of the second half's.
            return loop(_doubled(model), noise.shape, noise, model_kwargs={"z": conditions, **scale}, **options)
        rows = torch.cat([noise, noise]) if guided else noise
        return loop(model, rows.shape, rows, model_kwargs={"z": conditions, **scale}, **options)[: len(noise)]

    def draw(noise: Tensor, k: int) -> Tensor:
        halves = z.chunk(2) if guided else (z,)
        with preserve_rng(noise.device):  # DDIM draws noise, and multiplies it by zero
            return denoise(denoise_rows, noise, torch.cat([widen(half, k) for half in halves]))

    return engine.run(
        SampleRequest(
            # Not the caller's noise: it is drawn again, where the self-check can replace it.
            single=lambda: denoise_rows(torch.randn(batch, *shape[1:], device=noise.device).to(noise.dtype), z),
            wide=draw,
            noise=NoiseSpec(batch, tuple(shape[1:]), noise.device, noise.dtype),
            stochastic=stochastic,
            restore=lambda chunk: torch.cat([chunk, chunk]) if guided else chunk,
        )
    )


def denoise(loop: Callable[[Tensor, Tensor], Tensor], noise: Tensor, conditions: Tensor) -> Tensor:
    """The policy's own loop from given noise (R, T, D)."""
    return loop(noise, conditions)


def _doubled(model: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The network with guidance, for rows that are not doubled yet."""

    def call(x: Tensor, t: Tensor, **kwargs: Any) -> Tensor:
        return model(torch.cat([x, x]), torch.cat([t, t]), **kwargs)[: len(x)]

    return call


def _loop_in_steps(head: Any, ddim: bool, steps: int) -> Callable[..., Tensor]:
    """The DDIM loop of that many steps; the action model keeps its own."""
    if not ddim:
        raise KeystoneError(
            f"steps={steps}: the policy samples with DDPM, in all its steps; sample with DDIM (use_ddim)"
        )
    with head._keystone.stepping:
        return _create_ddim(head, steps).ddim_sample_loop


def _create_ddim(head: Any, steps: int) -> Any:
    before = vars(head)["ddim_diffusion"]
    try:
        head.create_ddim(ddim_step=steps)
        return vars(head)["ddim_diffusion"]
    finally:
        vars(head)["ddim_diffusion"] = before


class CogACTOverride(SamplerOverride):
    """On the action model."""

    diffusion = LoopHook(_sample)
    ddim_diffusion = LoopHook(_sample)


class CogACTAdapter(Adapter):
    """The action models of CogACT, InternVLA-M1 and Dexbotic."""

    name = "cogact"
    shared_context = "tokens of the vision-language model (encoded once; 1 to 64 tokens, copied K times)"
    project = "CogACT, InternVLA-M1, Dexbotic"
    recognised_by = ("net", "diffusion", "create_ddim", "in_channels", "diffusion_steps")
    steps_by_default = "10"
    override = CogACTOverride

    def default_steps(self, policy: Any) -> int | None:
        """Of DDIM, which the first call creates with its own argument."""
        own = vars(policy).get("ddim_diffusion")
        return None if own is None else int(own.num_timesteps)

    def refuse_steps(self, policy: Any, steps: int) -> str:
        try:
            _create_ddim(policy, steps)
        except ValueError:
            trained = int(policy.diffusion_steps)
            possible = sorted({len(range(0, trained, stride)) for stride in range(1, trained)})
            return f"DDIM takes every second, every third, … of {trained} trained steps; expected one of {possible}"
        return ""
