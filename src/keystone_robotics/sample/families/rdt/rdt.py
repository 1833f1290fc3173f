"""RDT-1B in its own repository."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families.rdt.denoiser import may_share, shared_rdt
from keystone_robotics.sample.kit.arguments import known_arguments
from keystone_robotics.sample.kit.schedule import refuse_more_than_trained
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest

ARGUMENTS = ("lang_cond", "lang_attn_mask", "img_cond", "state_traj", "action_mask", "ctrl_freqs")


class RDTOverride(SamplerOverride):
    """On the ``RDTRunner``."""

    def conditional_sample(self, *args: Any, **kwargs: Any) -> Tensor:
        sample, engine = super().conditional_sample, self._keystone  # type: ignore[misc]
        own = partial(sample, *args, **kwargs)
        if engine.untouched:
            return engine.run_single(own)
        given = known_arguments(engine.adapter.name, sample, args, kwargs, ARGUMENTS)
        language, visible, images, state, mask, frequency = (given[name] for name in ARGUMENTS)

        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            if shared:
                network = shared_rdt(self.model, language, images, visible, frequency)
            else:
                wide = (widen(one, k) for one in (frequency, language, images, visible))
                network = _own_network(self.model, *wide)
            return denoise(self, noise, network, widen(state, k), widen(mask, k))

        return engine.run(
            SampleRequest(
                single=own,
                wide=draw,
                shared=partial(draw, shared=True) if may_share(engine, self.model, visible) else None,
                noise=NoiseSpec.like(state, (self.pred_horizon, self.action_dim)),
                stochastic=str(self.noise_scheduler_sample.config.algorithm_type).startswith("sde"),
            )
        )


def _own_network(network: Any, frequency: Tensor, language: Tensor, images: Tensor, visible: Tensor) -> Any:
    return lambda tokens, time: network(tokens, frequency, time, language, images, lang_mask=visible)


def denoise(
    runner: Any, noise: Tensor, network: Callable[[Tensor, Tensor], Tensor], state: Tensor, mask: Tensor
) -> Tensor:
    """The runner's loop from given noise (R, T, D).

    Args:
        network: maps tokens (R, 1 + T, E) and the time (1,) to the scheduler's model output.
        state: (R, 1, E) the state's token.
        mask: (R, 1, D) 1 for the robot's dimensions, 0 for others. Those are 0 in every candidate.
    """
    scheduler, actions, mask = runner.noise_scheduler_sample, noise, mask.expand(-1, noise.shape[1], -1)
    scheduler.set_timesteps(runner.num_inference_timesteps)
    for time in scheduler.timesteps:
        tokens = torch.cat([state, runner.state_adaptor(torch.cat([actions, mask], dim=2))], dim=1)
        output = network(tokens, time.unsqueeze(-1).to(noise.device))
        actions = scheduler.step(output, time, actions).prev_sample.to(noise.dtype)
    return actions * mask


class RDTAdapter(Adapter):
    """RDT-1B in its own repository."""

    name = "rdt"
    shared_context = "image and language tokens and their projections in cross-attention (one copy, independent of K)"
    project = "RDT-1B"
    recognised_by = (
        "conditional_sample",
        "adapt_conditions",
        "state_adaptor",
        "noise_scheduler_sample",
        "pred_horizon",
    )
    steps = "num_inference_timesteps"
    steps_by_default = "5"
    encoders = ("adapt_conditions",)
    override = RDTOverride

    def refuse_steps(self, policy: Any, steps: int) -> str:
        return refuse_more_than_trained(policy.noise_scheduler_sample, steps)

    def encoder_modules(self, policy: Any) -> Sequence[Any]:
        return [policy.lang_adaptor, policy.img_adaptor]
