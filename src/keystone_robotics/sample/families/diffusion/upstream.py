"""The original Diffusion Policy and DP3: one denoising loop on a U-Net or a transformer, in the authors' own repositories."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.kit.arguments import known_arguments
from keystone_robotics.sample.kit.schedule import refuse_more_than_trained
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest

#: Arguments of ``conditional_sample`` that condition the network, by the network's own names.
CONDITIONS = ("cond", "local_cond", "global_cond")
#: The other known ones; DP3 takes the last two, and uses neither them nor what is passed on to the scheduler.
KNOWN = ("condition_data", "condition_mask", "generator", "kwargs", "condition_data_pc", "condition_mask_pc")


class OwnDiffusionOverride(SamplerOverride):
    """On the policy."""

    def conditional_sample(self, *args: Any, **kwargs: Any) -> Tensor:
        sample, engine = super().conditional_sample, self._keystone  # type: ignore[misc]
        own = partial(sample, *args, **kwargs)
        if engine.untouched:
            return engine.run_single(own)
        given = known_arguments(engine.adapter.name, sample, args, kwargs, (*CONDITIONS, *KNOWN))
        data, mask = given["condition_data"], given["condition_mask"]
        conditions = {name: given[name] for name in CONDITIONS if name in given}
        is_dp3 = "condition_data_pc" in inspect.signature(sample).parameters
        options = {} if is_dp3 else {"generator": given.get("generator"), **given.get("kwargs", {})}

        def draw(noise: Tensor, k: int) -> Tensor:
            wide = {name: widen(value, k) for name, value in conditions.items()}
            # The transformer calls its condition "cond" in both places; the U-Net takes the others by name.
            network = partial(self.model, **wide)
            return denoise(self, noise, widen(data, k), widen(mask, k), network, options)

        return engine.run(
            SampleRequest(
                single=own,
                wide=draw,
                noise=NoiseSpec.like(data, tuple(data.shape[1:])),
                stochastic=not _is_deterministic(self.noise_scheduler, options),
            )
        )


def denoise(
    policy: Any, noise: Tensor, data: Tensor, mask: Tensor, network: Callable[..., Tensor], options: dict[str, Any]
) -> Tensor:
    """The policy's loop from given noise (R, T, D).

    Args:
        data: (R, T, D) known values, for policies that condition by inpainting.
        mask: (R, T, D) where they are known.
        network: maps (trajectory, time) to the scheduler's model output.
        options: for the scheduler's steps.
    """
    scheduler, trajectory = policy.noise_scheduler, noise.clone()
    scheduler.set_timesteps(policy.num_inference_steps)
    for time in scheduler.timesteps:
        trajectory[mask] = data[mask]
        trajectory = scheduler.step(network(trajectory, time), time, trajectory, **options).prev_sample
    trajectory[mask] = data[mask]
    return trajectory


def _is_deterministic(scheduler: Any, options: dict[str, Any]) -> bool:
    """Whether the scheduler's steps draw no noise: DDIM unless its ``eta`` is positive."""
    return type(scheduler).__name__ == "DDIMScheduler" and not options.get("eta")


class OwnDiffusionAdapter(Adapter):
    """Diffusion Policy (U-Net, transformer; states, images, video) and DP3, in their own repositories."""

    name = "diffusion-policy"
    shared_context = "observation features (encoded once; small, copied K times)"
    project = "Diffusion Policy, DP3"
    recognised_by = (
        "conditional_sample",
        "predict_action",
        "noise_scheduler",
        "num_inference_steps",
        "normalizer",
        "n_obs_steps",
        "n_action_steps",
        "action_dim",
    )
    steps = "num_inference_steps"
    steps_by_default = "as many as it was trained with, 100; DP3 10"
    override = OwnDiffusionOverride

    def refuse_steps(self, policy: Any, steps: int) -> str:
        return refuse_more_than_trained(policy.noise_scheduler, steps)

    def encoder_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        return [(policy.obs_encoder, "forward")] if hasattr(policy, "obs_encoder") else []

    def config(self, policy: Any) -> Any:
        return policy

    def window(self, config: Any) -> Window:
        start = int(config.n_obs_steps) - 1
        if getattr(config, "pred_action_steps_only", False):
            start = 0
        elif not getattr(config, "oa_step_convention", True) or hasattr(config, "rgb_nets_map"):
            start += 1  # the U-Net on states by default, and the one on video
        return Window(int(config.action_dim), start, int(config.n_action_steps))
