"""Cosmos Policy in its own repository: actions are one of the latent frames that a video model denoises together."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.kit.arguments import known_arguments
from keystone_robotics.sample.kit.by_products import ByProducts
from keystone_robotics.sample.kit.widen import nearest_to, widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest

#: Besides the observation, its noise and how it was encoded. They are the same for all candidates.
OPTIONS = (
    "guidance", "state_shape", "is_negative_prompt", "num_steps", "solver_option", "sigma_max",
    "return_orig_clean_latent_frames", "worker_id",
)  # fmt: skip
ARGUMENTS = (
    "data_batch",
    "seed",
    "x_sigma_max",
    "skip_vae_encoding",
    "previous_generated_latent",
    "n_sample",
    "use_variance_scale",
    *OPTIONS,
)


class CosmosPolicyOverride(SamplerOverride):
    """On the model. Its evaluations pass a seed, from which numpy draws the noise; the noises of K candidates are derived from
    that seed too.
    """

    def generate_samples_from_batch(self, *args: Any, **kwargs: Any) -> Any:
        generate, engine = super().generate_samples_from_batch, self._keystone  # type: ignore[misc]
        known = None if engine.untouched else ARGUMENTS
        given = known_arguments(engine.adapter.name, generate, args, kwargs, known)
        if given.get("skip_vae_encoding") or given.get("x_sigma_max") is not None:
            return generate(**given)  # the future or the value of chosen actions, or the caller's noise
        if engine.steps is not None:
            given["num_steps"] = engine.steps
        observation, drawn, clean = given["data_batch"], ByProducts[Tensor](), ByProducts[Tensor]()
        frame = observation["action_latent_idx"]  # (B,)

        def chunk(output: Any) -> Tensor:
            return actions_in(output[0] if isinstance(output, tuple) else output, frame)

        if known is None:
            return engine.run_single(partial(generate, **given), chunk)
        if given.get("use_variance_scale"):
            raise KeystoneError(
                "cosmos-policy: use_variance_scale scales the noise of a whole call, not of a candidate: leave it out, and "
                "give attach a temperature= for more spread"
            )
        rows, device = len(frame), self.tensor_kwargs["device"]
        shape = _state_shape(self, observation)
        fixed = {name: value for name, value in given.items() if name in OPTIONS}

        def call(noise: Tensor, observation: Any, **encoded: Any) -> Any:
            options = {**fixed, "n_sample": len(noise), "x_sigma_max": noise * self.sde.sigma_max}
            return generate(observation, **options, **encoded)

        def draw(noise: Tensor, k: int) -> Tensor:
            frames: list[Tensor] = []
            latents = denoise(self, noise, observation, k, call, frames)
            drawn.add(latents.reshape(rows, k, *latents.shape[1:]))
            for one in frames:
                clean.add(one)
            return actions_in(latents, widen(frame, k))

        def restore(chosen: Tensor) -> Any:
            latents, frames = _with_actions(torch.cat(drawn.take(), dim=1), frame, chosen), clean.take()
            return (latents, frames[0]) if frames else latents

        return engine.run(
            SampleRequest(
                # Noise of torch's, which the self-check can replace.
                single=lambda: call(torch.randn((rows, *shape), device=device), observation),
                wide=draw,
                noise=NoiseSpec(rows, shape, device, seed=given.get("seed", 1)),
                chunk=chunk,
                restore=restore,
            )
        )


def denoise(model: Any, noise: Tensor, observation: dict[str, Any], k: int, call: Any, frames: list[Tensor]) -> Tensor:
    """The model's own method on B * K rows of noise, with images that are encoded once.

    Args:
        noise: (B * K, C, F, H, W) standard normal.
        observation: of B rows; the dict that the model's method takes.
        call: the model's own method.
        frames: the observation's latent frames (B, ...) are appended to it, if the caller wants them too.
    """
    _, encoded, _ = model.get_data_and_condition(observation)
    wide = {
        name: widen(value, k) if isinstance(value, Tensor) and value.ndim else value
        for name, value in observation.items()
    }
    output = call(noise, wide, skip_vae_encoding=True, previous_generated_latent=widen(encoded, k))
    if isinstance(output, tuple):
        output, clean = output
        frames.append(clean[::k])
    return output


def actions_in(latents: Tensor, frame: Tensor) -> Tensor:
    """The action chunks (R, T, D) in the frame (R,) of latents (R, C, F, H, W): the mean of their copies, as the project's."""
    steps, dims = _chunk_shape()
    flat = latents[torch.arange(len(latents), device=latents.device), :, frame.to(latents.device)].flatten(1)
    copies = flat.shape[1] // (steps * dims)
    return flat[:, : copies * steps * dims].reshape(-1, copies, steps, dims).mean(dim=1)


def _with_actions(latents: Tensor, frame: Tensor, chosen: Tensor) -> Tensor:
    """Of candidates (B, K, C, F, H, W) the one with the chosen chunk (B, T, D); for a mean, the nearest one with the mean in
    its frame.
    """
    k, results = latents.shape[1], []
    for row, chunk in zip(range(len(latents)), chosen.to(latents), strict=True):
        actions = actions_in(latents[row], frame[row].expand(k))
        nearest = nearest_to(actions, chunk)
        latent = latents[row, nearest].clone()
        if not torch.equal(actions[nearest], chunk):
            target = latent[:, frame[row]]
            copies = -(-target.numel() // chunk.numel())
            latent[:, frame[row]] = chunk.flatten().repeat(copies)[: target.numel()].view_as(target)
        results.append(latent)
    return torch.stack(results)


def _state_shape(model: Any, observation: dict[str, Any]) -> tuple[int, ...]:
    """(C, F, H, W) of the latents of a video, as the model computes it."""
    frames, height, width = observation[model.input_data_key].shape[-3:]
    factor = model.tokenizer.spatial_compression_factor
    return (model.config.state_ch, model.tokenizer.get_latent_num_frames(frames), height // factor, width // factor)


def _chunk_shape() -> tuple[int, int]:
    """Steps and dimensions of the robot's chunks, where the project's code keeps them."""
    constants = sys.modules.get("cosmos_policy.constants")
    if constants is None:
        raise KeystoneError(
            "cosmos-policy: the shape of a chunk is in cosmos_policy.constants; import it before the first call"
        )
    return int(constants.NUM_ACTIONS_CHUNK), int(constants.ACTION_DIM)


class CosmosPolicyAdapter(Adapter):
    """Cosmos Policy in its own repository."""

    name = "cosmos-policy"
    shared_context = (
        "latent frames of the images (encoded once, copied K times; candidates denoise actions, future and value)"
    )
    project = "Cosmos Policy"
    recognised_by = (
        "generate_samples_from_batch",
        "get_x0_fn_from_batch",
        "get_data_and_condition",
        "sde",
        "sampler",
        "tokenizer",
    )
    steps_argument = "num_steps"
    steps_by_default = "5"
    encoders = ("get_data_and_condition",)
    override = CosmosPolicyOverride

    def default_steps(self, policy: Any) -> int | None:
        """Only the caller knows: the method's own default is for videos."""
        return None
