"""H-RDT in its own repository."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families.rdt.denoiser import may_share, shared_h_rdt
from keystone_robotics.sample.kit.arguments import known_arguments
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest

ARGUMENTS = ("state_tokens", "image_tokens", "lang_tokens", "lang_attn_mask")


class HRDTOverride(SamplerOverride):
    """On the ``HRDTRunner``, whose method encodes and denoises."""

    @torch.no_grad()
    def predict_action(self, *args: Any, **kwargs: Any) -> Tensor:
        predict, engine = super().predict_action, self._keystone  # type: ignore[misc]
        own = partial(predict, *args, **kwargs)
        if engine.untouched:
            return engine.run_single(own)
        given = known_arguments(engine.adapter.name, predict, args, kwargs, ARGUMENTS)
        state, images, language, visible = (given.get(name) for name in ARGUMENTS)
        assert images is not None

        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            image_tokens = self.img_adapter(images)
            language_tokens = None if language is None else self.lang_adapter(language)
            if shared:
                network = shared_h_rdt(self.model, image_tokens, language_tokens, visible)
            else:
                wide = {"img_c": image_tokens, "lang_c": language_tokens, "lang_attn_mask": visible}
                network = partial(self.model, **{name: widen(value, k) for name, value in wide.items()})
            return denoise(self, noise, network, widen(self.action_encoder.encode_state(state), k))

        return engine.run(
            SampleRequest(
                single=own,
                wide=draw,
                shared=partial(draw, shared=True) if may_share(engine, self.model, visible) else None,
                noise=NoiseSpec.like(images, (self.pred_horizon, self.action_dim)),
            )
        )


def denoise(runner: Any, noise: Tensor, network: Callable[[Tensor, Tensor], Tensor], state: Tensor) -> Tensor:
    """The runner's Euler steps from given noise (R, T, D).

    Args:
        network: maps tokens (R, 1 + T, E) and the time (1,) to a velocity.
        state: (R, 1, E) the state's token.
    """
    actions, time = noise, torch.zeros(1, dtype=noise.dtype, device=noise.device)
    step = 1.0 / runner.num_inference_timesteps
    for _ in range(runner.num_inference_timesteps):
        velocity = network(torch.cat([state, runner.action_encoder.encode_action(actions)], dim=1), time)
        actions, time = velocity * step + actions, time + step  # the time is rounded as the authors' is
    return actions


class HRDTAdapter(Adapter):
    """H-RDT in its own repository."""

    name = "h-rdt"
    shared_context = "image and language tokens and their projections in cross-attention (one copy, independent of K)"
    project = "H-RDT"
    recognised_by = (
        "predict_action",
        "action_encoder",
        "img_adapter",
        "lang_adapter",
        "num_inference_timesteps",
        "pred_horizon",
    )
    steps = "num_inference_timesteps"
    steps_by_default = "5"
    encoders = ("img_adapter.forward", "lang_adapter.forward")
    override = HRDTOverride

    def encoder_modules(self, policy: Any) -> Sequence[Any]:
        return [policy.img_adapter, policy.lang_adapter]
