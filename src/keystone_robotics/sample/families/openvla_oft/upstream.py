"""OpenVLA-OFT in its own repository: a language model that denoises, with a diffusion head on its last layer."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError, StepsRefused
from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.kit.arguments import known_arguments
from keystone_robotics.sample.kit.by_products import ByProducts
from keystone_robotics.sample.kit.schedule import refuse_more_than_trained
from keystone_robotics.sample.kit.widen import nearest_to, widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest

#: Of one row for each candidate.
ROWS = ("input_embeddings", "all_actions_mask", "projected_patch_embeddings", "attention_mask")
ARGUMENTS = (*ROWS, "noise", "action_head", "noisy_action_projector", "labels", "NUM_PATCHES", "NUM_PROMPT_TOKENS")


def _chunk(output: Any) -> Tensor:
    return torch.from_numpy(output[0])[None]


class OpenVLAOFTOverride(SamplerOverride):
    """On the vision-language-action model; its caller passes the action head."""

    def _run_diffusion_prediction(self, *args: Any, **kwargs: Any) -> Any:
        run, engine = super()._run_diffusion_prediction, self._keystone  # type: ignore[misc]
        if engine.untouched and engine.steps is None:
            return engine.run_single(partial(run, *args, **kwargs), _chunk)
        given = known_arguments(engine.adapter.name, run, args, kwargs, ARGUMENTS)
        if engine.steps is not None:
            given["action_head"] = _head_with_steps(given["action_head"], engine.steps)
        if engine.untouched:
            return engine.run_single(partial(run, **given), _chunk)
        noise, drawn = given["noise"], ByProducts[tuple[Tensor, Tensor]]()

        def single() -> Any:
            # Not the caller's noise: it is drawn again, where the self-check can replace it.
            return run(**{**given, "noise": torch.randn(noise.shape, device=noise.device, dtype=noise.dtype)})

        def draw(noise: Tensor, k: int) -> Tensor:
            hidden: list[Tensor] = []
            wide = {**given, **{name: widen(given[name], k) for name in ROWS}}
            actions = denoise(self, noise, wide, hidden)
            for one in hidden:
                drawn.add((actions, one))
            return actions.float().cpu()  # where the model returns them, for the comparison in the self-check

        def restore(chunk: Tensor) -> tuple[Any, Tensor]:
            """With the hidden states (1, T * D, E) of the selected candidate, or of the one nearest to a mean."""
            actions, hidden = (torch.cat(parts) for parts in zip(*drawn.take()))
            nearest = nearest_to(actions, chunk.to(actions))
            return chunk[0].numpy(), hidden[nearest][None]

        spec = NoiseSpec(len(noise), tuple(noise.shape[1:]), noise.device, noise.dtype)
        return engine.run(SampleRequest(single=single, wide=draw, noise=spec, chunk=_chunk, restore=restore))

    def _regression_or_discrete_prediction(self, *args: Any, **kwargs: Any) -> Any:
        if not self._keystone.untouched:
            raise KeystoneError(
                "openvla-oft: without a diffusion head the prediction is deterministic, and all candidates would be equal: "
                "pass predict_action a DiffusionActionHead and noisy_action_projector, or detach"
            )
        return super()._regression_or_discrete_prediction(*args, **kwargs)  # type: ignore[misc]


def _head_with_steps(head: Any, steps: int) -> Any:
    """The same head with another schedule; the caller's keeps its own."""
    if reason := refuse_more_than_trained(head.noise_scheduler, steps):
        raise StepsRefused(f"steps={steps}: {reason}")
    other = copy.copy(head)
    other.noise_scheduler = copy.copy(head.noise_scheduler)
    other.noise_scheduler.set_timesteps(steps)
    return other


def denoise(model: Any, noise: Tensor, given: dict[str, Any], hidden: list[Tensor]) -> Tensor:
    """The model's loop from given noise (R, T, D); every step runs all of the language model.

    Args:
        given: the arguments of ``_run_diffusion_prediction``, with R rows.
        hidden: the last hidden states (R, T * D, E) are appended to it.
    """
    head, patches, actions = given["action_head"], given["projected_patch_embeddings"], noise
    for time in head.noise_scheduler.timesteps:
        embedded = head.time_encoder(torch.Tensor([time]).to(noise.device)).to(noise)
        features = given["noisy_action_projector"](actions.flatten(1).unsqueeze(-1))
        inputs, mask = model._build_multimodal_attention(
            model._replace_input_embeddings(given["input_embeddings"], given["all_actions_mask"], features),
            torch.cat([patches, embedded.unsqueeze(1).expand(len(patches), -1, -1)], dim=1),
            given["attention_mask"],
        )
        output = model.language_model(
            input_ids=None, attention_mask=mask, position_ids=None, past_key_values=None, inputs_embeds=inputs, labels=None,
            use_cache=None, output_attentions=False, output_hidden_states=True, return_dict=True,
        )  # fmt: skip
        first = given["NUM_PATCHES"] + given["NUM_PROMPT_TOKENS"]
        states = output.hidden_states[-1][:, first : first + features.shape[1]]
        actions = head.noise_scheduler.step(head.predict_noise(states), time, actions).prev_sample
    hidden.append(states)
    return actions


class OpenVLAOFTAdapter(Adapter):
    """OpenVLA-OFT with its diffusion head, in its own repository."""

    name = "openvla-oft"
    shared_context = (
        "embeddings of images, text and state (encoded once, copied K times; every candidate runs them through the language "
        "model in every step)"
    )
    project = "OpenVLA-OFT"
    recognised_by = (
        "_run_diffusion_prediction",
        "_replace_input_embeddings",
        "_build_multimodal_attention",
        "predict_action",
    )
    steps_by_default = "50"
    encoders = ("_process_vision_features",)
    override = OpenVLAOFTOverride

    def refuse_steps(self, policy: Any, steps: int) -> str:
        return ""  # the schedule comes with the head, in every call
