"""Fast-WAM's own code: one pass of the video expert, then K chunks of actions on its cache."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.families.fastwam.flow import denoise, may_share
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest
from keystone_robotics.sample.steps import default_argument

#: Set while `infer_action` runs up to its first denoising step, in this thread or task.
_encoding: contextvars.ContextVar[bool] = contextvars.ContextVar("keystone_fast_wam_encoding", default=False)


def _chunk(output: dict[str, Tensor]) -> Tensor:
    return output["action"][None]


class _Encoded(Exception):
    """Carries the arguments of the first denoising step."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments


class OwnFastWAMOverride(SamplerOverride):
    """On the model.

    Both of Fast-WAM's evaluations call it with a fixed seed: its noise is the same in every round, and K calls would give K
    equal chunks. The K noises of a round are distinct, derived from that seed, and so the same in every round too.
    """

    @torch.no_grad()
    def infer_action(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        infer, engine = super().infer_action, self._keystone  # type: ignore[misc]
        if engine.untouched and engine.steps is None:
            return engine.run_single(partial(infer, *args, **kwargs), _chunk)
        bound = inspect.signature(infer).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if engine.steps is not None:
            given["num_inference_steps"] = engine.steps

        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            step = _first_step(infer, given)
            actions = denoise(self, noise, given, step, engine.compiled_step, shared)
            return actions.float().cpu()  # where upstream returns them, for the comparison in the self-check

        return engine.run(
            SampleRequest(
                single=lambda: infer(**given),
                chunk=_chunk,
                restore=lambda chunk: {"action": chunk[0]},
                wide=draw,
                shared=partial(draw, shared=True) if may_share(engine, self) else None,
                noise=NoiseSpec(
                    batch=1,
                    shape=(given["action_horizon"], self.action_expert.action_dim),
                    device=self.device,
                    dtype=self.torch_dtype,
                    seed=given["seed"],
                ),
            )
        )

    def _predict_action_noise_with_cache(self, **arguments: Any) -> Tensor:
        if _encoding.get():
            raise _Encoded(arguments)
        return super()._predict_action_noise_with_cache(**arguments)  # type: ignore[misc]


def _first_step(infer: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the first denoising step in `infer_action`, except actions and time."""
    token = _encoding.set(True)
    try:
        infer(**{**given, "seed": 0})  # a seed, so that the unused noise does not advance the global generator
    except _Encoded as encoded:
        return {
            name: value
            for name, value in encoded.arguments.items()
            if name not in ("latents_action", "timestep_action")
        }
    finally:
        _encoding.reset(token)
    raise KeystoneError(
        "fast-wam: infer_action did not call _predict_action_noise_with_cache: it was compiled, or its code has changed; "
        "attach before compiling"
    )


class OwnFastWAMAdapter(Adapter):
    """Fast-WAM in its own repository."""

    name = "fast-wam"
    shared_context = "the image's latents, the text and the video expert's key-value cache (one copy, independent of K)"
    project = "FastWAM"
    recognised_by = (
        "infer_action",
        "_predict_action_noise_with_cache",
        "infer_action_scheduler",
        "action_expert",
        "mot",
    )
    steps_argument = "num_inference_steps"
    steps_by_default = "20"
    override = OwnFastWAMOverride
    compiles = True

    def module(self, policy: Any) -> Any:
        return _model(policy)

    def encoder_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        model = _model(policy)
        return [(model, "_encode_input_image_latents_tensor"), (model.mot, "prefill_video_cache")]

    def default_steps(self, policy: Any) -> int | None:
        """Of the method; a caller may pass another number."""
        return default_argument(_model(policy), "infer_action", self.steps_argument)

    def config(self, policy: Any) -> Any:
        return policy

    def window(self, config: Any) -> Window | None:
        """The RoboTwin policy has the number of executed steps; without it all steps count."""
        steps = getattr(config, "replan_steps", None)
        return None if steps is None else Window(None, 0, int(steps))

    def refuse(self, policy: Any) -> str:
        # Fast-WAM's own evaluation distinguishes the variants in the same way.
        if "num_video_frames" in inspect.signature(_model(policy).infer_action).parameters:
            return (
                "this variant generates a video for every chunk, from separate noise: K candidates would need K videos"
            )
        return ""


def _model(policy: Any) -> Any:
    """The model of a RoboTwin policy, or the object itself."""
    return policy.model if hasattr(policy, "replan_steps") and hasattr(policy, "model") else policy
