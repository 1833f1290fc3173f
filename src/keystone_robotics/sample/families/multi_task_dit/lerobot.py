"""LeRobot's multi-task DiT: two objectives, whose loops take a conditioning vector with any number of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.kit.schedule import refuse_more_than_trained
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class MultiTaskDiTOverride(SamplerOverride):
    """On ``policy.objective``: flow matching (Euler or Runge-Kutta) or diffusion (DDPM or DDIM)."""

    def conditional_sample(self, model: Any, batch_size: int, conditioning_vec: Tensor) -> Tensor:
        single = super().conditional_sample  # type: ignore[misc]
        diffuses = _diffuses(self)
        weight = next(model.parameters())

        def draw(noise: Tensor, k: int) -> Tensor:
            integrate = self._denoise if diffuses else self._flow
            return integrate(model, noise, widen(conditioning_vec, k))

        return self._keystone.run(
            SampleRequest(
                single=lambda: single(model, batch_size, conditioning_vec),
                wide=draw,
                noise=NoiseSpec(
                    batch=batch_size, shape=(self.horizon, self.action_dim), device=weight.device, dtype=weight.dtype
                ),
                stochastic=diffuses and self.config.noise_scheduler_type == "DDPM",
            )
        )

    def _flow(self, model: Any, noise: Tensor, conditioning: Tensor) -> Tensor:
        times = torch.linspace(0, 1, self.config.num_integration_steps + 1, device=noise.device)
        euler = self.config.integration_method == "euler"
        integrate = self._euler_integrate if euler else self._rk4_integrate
        return integrate(model, noise, times, conditioning)

    def _denoise(self, model: Any, sample: Tensor, conditioning: Tensor) -> Tensor:
        self.noise_scheduler.set_timesteps(self.num_inference_steps)
        for t in self.noise_scheduler.timesteps:
            times = torch.full(sample.shape[:1], t, dtype=torch.long, device=sample.device)
            output = model(sample, times, conditioning_vec=conditioning)
            sample = self.noise_scheduler.step(output, t, sample).prev_sample
        return sample


def _diffuses(objective: Any) -> bool:
    return hasattr(objective, "noise_scheduler")


class MultiTaskDiTAdapter(Adapter):
    """Multi-task DiT."""

    name = "multi_task_dit"
    shared_context = "the observation vector (encoded once; small, copied K times)"
    sampler = "objective"
    encoders = ("observation_encoder.encode",)
    steps_by_default = "flow matching 100; diffusion as many as it was trained with, 100"
    override = MultiTaskDiTOverride

    def steps_setting(self, policy: Any) -> tuple[Any, str]:
        objective = self.module(policy)
        return (
            (objective, "num_inference_steps") if _diffuses(objective) else (objective.config, "num_integration_steps")
        )

    def default_steps(self, policy: Any) -> int:
        return int(getattr(*self.steps_setting(policy)))

    def refuse_steps(self, policy: Any, steps: int) -> str:
        objective = self.module(policy)
        return refuse_more_than_trained(objective.noise_scheduler, steps) if _diffuses(objective) else ""

    def window(self, config: Any) -> Window:
        return Window(int(config.action_feature.shape[0]), config.n_obs_steps - 1, int(config.n_action_steps))
