"""The seams of the original Diffusion Policy and of DP3: one loop, four ways to condition it, schedulers as in diffusers."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HORIZON, DIMS, OBSERVED, STATE, TRAINED, STEPS = 16, 8, 3, 2, 5, 20, 5


class Scheduler:
    """`step` as in diffusers: towards the model's output, and in DDPM with noise unless it is the last."""

    noisy = False

    def __init__(self) -> None:
        self.config = SimpleNamespace(num_train_timesteps=TRAINED)
        self.timesteps = torch.arange(0)

    def set_timesteps(self, steps: int) -> None:
        self.timesteps = torch.arange(steps).flip(0) * (TRAINED // steps)

    def step(self, output: Tensor, time: Tensor, sample: Tensor, eta: float = 0.0, generator: Any = None) -> Any:
        previous = sample - output / len(self.timesteps)
        if (self.noisy or eta) and time > 0:
            previous = previous + 0.1 * torch.randn(sample.shape, generator=generator, dtype=sample.dtype)
        return SimpleNamespace(prev_sample=previous)


class DDPMScheduler(Scheduler):
    noisy = True


class DDIMScheduler(Scheduler):
    pass


class Network(nn.Module):
    """Takes a trajectory, a time and conditions, by position or by name as the real networks do."""

    def __init__(self, dims: int, condition: int) -> None:
        super().__init__()
        self.time, self.condition = nn.Embedding(TRAINED, WIDTH), nn.Linear(max(condition, 1), WIDTH)
        self.enter, self.leave = nn.Conv1d(dims, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, dims, 3, padding=1)

    def run(self, sample: Tensor, timestep: Tensor, condition: Tensor | None) -> Tensor:
        hidden = self.enter(sample.mT) + self.time(timestep)[:, None]
        if condition is not None:
            hidden = hidden + self.condition(condition)[:, :, None]
        return self.leave(hidden.tanh()).mT


class Unet(Network):
    def forward(self, sample: Tensor, timestep: Tensor, local_cond: Any = None, global_cond: Any = None) -> Tensor:
        assert local_cond is None
        return self.run(sample, timestep, global_cond)


class Transformer(Network):
    def forward(self, sample: Tensor, timestep: Tensor, cond: Tensor | None = None) -> Tensor:
        return self.run(sample, timestep, None if cond is None else cond.flatten(1))


class PolicyLike(nn.Module):
    """What the policies of both repositories have in common."""

    def __init__(
        self, scheduler: Scheduler, network: type[Network], inpaint: bool = False, images: bool = True
    ) -> None:
        super().__init__()
        self.inpaint, self.noise_scheduler = inpaint, scheduler
        self.action_dim, self.n_obs_steps, self.n_action_steps, self.horizon = DIMS, OBSERVED, 4, HORIZON
        self.num_inference_steps, self.kwargs = STEPS, {}
        self.normalizer = nn.ModuleDict()  # the real one scales; here actions are of size 1
        if images:
            self.obs_encoder = nn.Linear(STATE, STATE)
        self.model = network(DIMS + STATE * inpaint, 0 if inpaint else OBSERVED * STATE)

    def predict_action(self, obs_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        features = obs_dict["obs"][:, :OBSERVED]
        if hasattr(self, "obs_encoder"):
            features = self.obs_encoder(features.flatten(0, 1)).unflatten(0, (-1, OBSERVED))
        data = torch.zeros(len(features), HORIZON, DIMS + STATE * self.inpaint)
        mask = torch.zeros_like(data, dtype=torch.bool)
        if self.inpaint:
            data[:, :OBSERVED, DIMS:], mask[:, :OBSERVED, DIMS:] = features, True
        sample = self.sample_with(data, mask, **({} if self.inpaint else self.conditions(features)))
        start = OBSERVED - 1
        return {"action": sample[:, start : start + self.n_action_steps, :DIMS], "action_pred": sample}

    def sample_with(self, data: Tensor, mask: Tensor, **conditions: Any) -> Tensor:
        return self.conditional_sample(data, mask, **conditions, **self.kwargs)

    def conditions(self, features: Tensor) -> dict[str, Any]:
        return {"local_cond": None, "global_cond": features.flatten(1)}

    def loop(self, data: Tensor, mask: Tensor, network: Any, **options: Any) -> Tensor:
        trajectory = torch.randn(
            size=data.shape, dtype=data.dtype, device=data.device, generator=options.get("generator")
        )
        self.noise_scheduler.set_timesteps(self.num_inference_steps)
        for time in self.noise_scheduler.timesteps:
            trajectory[mask] = data[mask]
            output = network(trajectory, time)
            trajectory = self.noise_scheduler.step(output, time, trajectory, **options).prev_sample
        trajectory[mask] = data[mask]
        return trajectory


class UnetLike(PolicyLike):
    """Of ``obs_as_global_cond``, or with observations inpainted."""

    def __init__(self, scheduler: Scheduler, inpaint: bool = False) -> None:
        super().__init__(scheduler, Unet, inpaint)

    def conditional_sample(
        self, condition_data: Tensor, condition_mask: Tensor, local_cond: Any = None, global_cond: Any = None,
        generator: Any = None, **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        def network(trajectory: Tensor, time: Tensor) -> Tensor:
            return self.model(trajectory, time, local_cond=local_cond, global_cond=global_cond)

        return self.loop(condition_data, condition_mask, network, generator=generator, **kwargs)


class TransformerLike(PolicyLike):
    """On states, and with DDIM's own noise."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler, Transformer, images=False)
        self.kwargs = {"eta": 0.5}

    def conditions(self, features: Tensor) -> dict[str, Any]:
        return {"cond": features}

    def conditional_sample(
        self, condition_data: Tensor, condition_mask: Tensor, cond: Any = None, generator: Any = None, **kwargs: Any
    ) -> Tensor:
        def network(trajectory: Tensor, time: Tensor) -> Tensor:
            return self.model(trajectory, time, cond)

        return self.loop(condition_data, condition_mask, network, generator=generator, **kwargs)


class DP3Like(PolicyLike):
    """Takes options for the scheduler, and does not pass them on."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler, Unet)
        self.kwargs = {"eta": 0.5}

    def conditional_sample(
        self, condition_data: Tensor, condition_mask: Tensor, condition_data_pc: Any = None, condition_mask_pc: Any = None,
        local_cond: Any = None, global_cond: Any = None, generator: Any = None, **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        def network(trajectory: Tensor, time: Tensor) -> Tensor:
            return self.model(sample=trajectory, timestep=time, local_cond=local_cond, global_cond=global_cond)

        return self.loop(condition_data, condition_mask, network)


def predict(policy: PolicyLike, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return policy.predict_action({"obs": torch.randn(rows, OBSERVED, STATE, generator=generator)})["action_pred"]
