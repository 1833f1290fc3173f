"""LeRobot's FastWAM: a world-action model that encodes the video once and denoises actions on its cache."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families.fastwam.flow import denoise, may_share
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class FastWAMOverride(SamplerOverride):
    """On the policy: its model takes one observation at a time, and only the policy has the batch.

    The model's own noise is seeded with ``config.inference_seed`` (default 42): the same for every chunk and row. With
    KeyStone attached, the engine seeds it.
    """

    def predict_action_chunk(self, batch: dict[str, Any], **kwargs: Any) -> Tensor:
        from lerobot.policies.fastwam.modeling_fastwam import (
            _batch_to_infer_kwargs,
            _infer_kwargs_batch_size,
            _slice_infer_kwargs,
            batch_device,
        )

        single = super().predict_action_chunk  # type: ignore[misc]
        if self._keystone.steps is not None:
            batch = {**batch, "num_inference_steps": self._keystone.steps}  # goes over the configuration's number
        inputs = _batch_to_infer_kwargs(batch=batch, config=self.config)
        rows = _infer_kwargs_batch_size(inputs)

        @torch.no_grad()
        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            self.eval()
            candidates = []
            for row, noises in enumerate(noise.view(rows, k, *noise.shape[1:])):
                call = inputs if rows == 1 else _slice_infer_kwargs(inputs, index=row, batch_size=rows)
                step = _first_step(self.model, call, noise.shape[1])
                candidates.append(denoise(self.model, noises, call, step, self._keystone.compiled_step, shared))
            return torch.cat(candidates).to(batch_device(batch), torch.float32)

        return self._keystone.run(
            SampleRequest(
                single=lambda: single(batch, **kwargs),
                wide=draw,
                shared=partial(draw, shared=True) if may_share(self._keystone, self.model) else None,
                noise=NoiseSpec(
                    batch=rows,
                    shape=(inputs["action_horizon"], self.model.action_expert.action_dim),
                    device=self.model.device,
                    dtype=self.model.torch_dtype,
                ),
            )
        )


def _first_step(model: Any, call: Mapping[str, Any], horizon: int) -> dict[str, Any]:
    """Arguments of the first denoising step in a call of ``FastWAM.infer_action``, for one observation, except actions and
    time.
    """
    image, _height, _width = model._normalize_infer_input_image(call["input_image"])
    first_frame = model._encode_input_image_latents_tensor(
        input_image=image.to(device=model.device, dtype=model.torch_dtype), tiled=call["tiled"]
    )
    context, context_mask = model._prepare_infer_context(
        call["prompt"], call["context"], call["context_mask"], model._normalize_infer_proprio(call["proprio"])
    )
    video = model.video_expert.pre_dit(
        x=first_frame,
        timestep=torch.zeros(1, dtype=first_frame.dtype, device=model.device),
        context=context,
        context_mask=context_mask,
        action=None,
        fuse_vae_embedding_in_latents=bool(getattr(model.video_expert, "fuse_vae_embedding_in_latents", False)),
    )
    length = int(video["tokens"].shape[1])
    mask = model._build_mot_attention_mask(
        video_seq_len=length,
        action_seq_len=horizon,
        video_tokens_per_frame=int(video["meta"]["tokens_per_frame"]),
        device=video["tokens"].device,
    )
    cache = model.mot.prefill_video_cache(
        video_tokens=video["tokens"],
        video_freqs=video["freqs"],
        video_t_mod=video["t_mod"],
        video_context_payload={"context": video["context"], "mask": video["context_mask"]},
        video_attention_mask=mask[:length, :length],
    )
    return {
        "context": context,
        "context_mask": context_mask,
        "video_kv_cache": cache,
        "attention_mask": mask,
        "video_seq_len": length,
    }


class FastWAMAdapter(Adapter):
    """FastWAM."""

    name = "fastwam"
    shared_context = "the image's latents, the text and the video expert's key-value cache (one copy, independent of K)"
    encoders = (
        "model._encode_input_image_latents_tensor",
        "model.mot.prefill_video_cache",
    )
    steps = "config.num_inference_steps"
    steps_argument = "num_inference_steps"
    steps_by_default = "10"
    override = FastWAMOverride
    compiles = True
