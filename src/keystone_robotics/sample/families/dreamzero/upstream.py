"""DreamZero in its own repository: video and actions are denoised together, on a cache that the observation is written to."""

from __future__ import annotations

import contextvars
import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.kit.arguments import known_arguments
from keystone_robotics.sample.kit.by_products import ByProducts
from keystone_robotics.sample.kit.widen import nearest_to, widen
from keystone_robotics.sample.override import Hook, SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest

#: What the head keeps from one observation to the next; lists are written to.
MEMORY = (
    "kv_cache1", "kv_cache_neg", "crossattn_cache", "crossattn_cache_neg", "clip_feas", "ys", "language", "skip_countdown",
    "current_start_frame",
)  # fmt: skip

#: Arguments of a pass of the transformer that have a row for each observation.
ROWS = ("state", "embodiment_id", "y", "clip_feature")


@dataclass(frozen=True)
class Draw:
    """The noise (B * K, T, D) of the actions; that of the videos is drawn by the head."""

    actions: Tensor
    k: int


#: Set while the head runs K wide, in this thread or task.
_drawing: contextvars.ContextVar[Draw | None] = contextvars.ContextVar("keystone_dreamzero_drawing", default=None)


def _lazy_joint_video_action(head: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    call, engine = partial(own, *args, **kwargs), head._keystone
    if engine.untouched:
        return engine.run_single(call, itemgetter("action_pred"))
    if problem := obstacle(head):
        raise KeystoneError(f"dreamzero: {problem}")
    known = ("backbone_output", "action_input", "latent_video")
    rows = len(known_arguments(engine.adapter.name, own, args, kwargs, known)["action_input"]["images"])
    before, after, outputs = memory_of(head), ByProducts[dict[str, Any]](), ByProducts[Any]()
    noise = NoiseSpec(rows, (head.action_horizon, head.model.action_dim), head._device, head.dtype, seed=head.seed)

    def single() -> Any:
        actions = torch.randn((rows, *noise.shape), device=noise.device, dtype=noise.dtype)
        return denoise(head, actions, 1, call, before)[0]

    def draw(noise: Tensor, k: int) -> Any:
        output, remembered = denoise(head, noise, k, call, before)
        outputs.add(output)
        after.add(remembered)
        return output["action_pred"]

    def restore(chosen: Tensor) -> Any:
        remember(head, after.take()[-1])
        drawn = outputs.take()
        actions, videos = (
            torch.cat([one[name].unflatten(0, (rows, -1)) for one in drawn], dim=1)
            for name in ("action_pred", "video_pred")
        )
        nearest = [nearest_to(actions[row], chosen[row].to(actions)) for row in range(rows)]
        result = copy.copy(drawn[-1])
        result.update(action_pred=chosen, video_pred=videos[torch.arange(rows), nearest])
        return result

    return engine.run(
        SampleRequest(
            single=single,
            wide=draw,
            noise=noise,
            stochastic=True,  # the videos' noise
            chunk=itemgetter("action_pred"),
            restore=restore,
            own=call,
        )
    )


def _generate_noise(head: Any, own: Callable[..., Tensor], shape: Any, *args: Any, **kwargs: Any) -> Tensor:
    drawing = _drawing.get()
    if drawing is None:
        return own(shape, *args, **kwargs)
    like = drawing.actions
    if tuple(shape[1:]) == tuple(like.shape[1:]):
        return like
    return torch.randn((len(like), *shape[1:]), device=like.device, dtype=like.dtype)


def _encode_image(head: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    drawing, encoded = _drawing.get(), own(*args, **kwargs)
    if drawing is None:
        return encoded
    *features, image = encoded
    return (*features, widen(image, drawing.k))  # it becomes the first frame of each video


def _run_diffusion_steps(head: Any, own: Callable[..., Any], **given: Any) -> Any:
    drawing = _drawing.get()
    if drawing is None or drawing.k == 1:
        return own(**given)
    k, rows = drawing.k, len(drawing.actions) // drawing.k
    if given["kv_cache_metadata"]["update_kv_cache"]:  # the observation, once for all candidates
        for cache in given["kv_caches"]:
            cache[:] = [layer[:, :rows] for layer in cache]
        frames = given["noisy_input"]
        frames = frames[::k] if len(frames) > rows else frames
        return own(**{**given, "noisy_input": frames, "timestep": given["timestep"][:rows]})
    wide = {name: widen(given[name], k) for name in ROWS}
    prompts = [widen(prompt, k) for prompt in given["context"]]
    caches = [[widen(layer.transpose(0, 1), k).transpose(0, 1) for layer in cache] for cache in given["kv_caches"]]
    return own(**{**given, **wide, "context": prompts, "kv_caches": caches})


class DreamZeroOverride(SamplerOverride):
    """On the action head, whose own method runs K wide from beginning to end, each time from the same memory.

    What it makes of the observation stays B rows; only the noise and the denoising steps have B * K. The class of the head is
    an ``abc.ABC``: hooks only.
    """

    lazy_joint_video_action = Hook(_lazy_joint_video_action)
    generate_noise = Hook(_generate_noise)
    encode_image = Hook(_encode_image)
    _run_diffusion_steps = Hook(_run_diffusion_steps)


def denoise(head: Any, noise: Tensor, k: int, call: Any, before: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The head's own method on noise (B * K, T, D), from a memory; and what it remembers then. The head's memory stays."""
    present = memory_of(head)
    token = _drawing.set(Draw(noise, k))
    try:
        remember(head, before)
        return call(), memory_of(head)
    finally:
        _drawing.reset(token)
        remember(head, present)


def memory_of(head: Any) -> dict[str, Any]:
    """What the head remembers; tensors are not copied."""
    return {name: _copied(value) for name, value in vars(head).items() if name in MEMORY}


def remember(head: Any, memory: dict[str, Any]) -> None:
    """Put back what `memory_of` returned."""
    for name in MEMORY:
        vars(head).pop(name, None)
    vars(head).update({name: _copied(value) for name, value in memory.items()})


def _copied(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


def obstacle(head: Any) -> str:
    """Why this head cannot run K wide, or an empty string."""
    if head.ip_size > 1:
        return "guidance is split over two processes (ip_size=2), which would each select: run one process"
    if getattr(head, "trt_engine", None) is not None:
        return "a TensorRT engine has a fixed batch: leave LOAD_TRT_ENGINE out"
    if head.dynamic_cache_schedule:
        return (
            "DYNAMIC_CACHE_SCHEDULE skips steps by a mean over the batch, so candidates would depend on each other: leave it "
            "out (NUM_DIT_STEPS skips the same steps for all)"
        )
    return ""


class DreamZeroAdapter(Adapter):
    """DreamZero in its own repository."""

    name = "dreamzero"
    shared_context = (
        "text, image and the cache of past frames (encoded once, copied K times in every step; each candidate denoises a "
        "video of its own)"
    )
    project = "DreamZero"
    recognised_by = ("lazy_joint_video_action", "_run_diffusion_steps", "generate_noise")
    override = DreamZeroOverride
    encoders = ("text_encoder.forward", "image_encoder.encode_image", "vae.encode")
    steps = "num_inference_steps"
    steps_by_default = "16, of which 8 run the transformer"
    padding_reason = (
        "chunks are padded to the widest robot, and only the client knows how many steps it executes. The action head has "
        "neither"
    )

    def refuse(self, policy: Any) -> str:
        return obstacle(policy)

    def refuse_steps(self, policy: Any, steps: int) -> str:
        most = len(policy.dit_step_mask)
        return (
            f"DreamZero says for {most} steps which run the transformer: give {most} or fewer" if steps > most else ""
        )
