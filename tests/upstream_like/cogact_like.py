"""The sampling block of CogACT, InternVLA-M1 and Dexbotic: an action model with two diffusion objects, one made on demand."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HORIZON, DIMS, TRAINED = 16, 6, 4, 12


class Diffusion:
    """Loops with the interface of OpenAI's: noise is always drawn, and DDIM multiplies it by zero."""

    def __init__(self, steps: list[int]) -> None:
        self.steps, self.num_timesteps = steps, len(steps)

    def _loop(self, model: Any, shape: Any, noise: Tensor, model_kwargs: dict[str, Any], strength: float) -> Tensor:
        for step in reversed(self.steps):
            time = torch.tensor([step] * shape[0])
            drawn = torch.randn_like(noise)
            noise = noise - model(noise, time, **model_kwargs) / self.num_timesteps + strength * (step > 0) * drawn
        return noise

    def ddim_sample_loop(
        self, model: Any, shape: Any, noise: Any = None, clip_denoised: bool = True, model_kwargs: Any = None,
        device: Any = None, progress: bool = False, eta: float = 0.0,
    ) -> Tensor:  # fmt: skip
        return self._loop(model, shape, noise, model_kwargs, eta)

    def p_sample_loop(
        self, model: Any, shape: Any, noise: Any = None, clip_denoised: bool = True, model_kwargs: Any = None,
        device: Any = None, progress: bool = False,
    ) -> Tensor:  # fmt: skip
        return self._loop(model, shape, noise, model_kwargs, 0.1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.z_embedder = nn.Module()
        self.z_embedder.uncondition = nn.Parameter(torch.randn(1, WIDTH))
        self.time, self.enter, self.leave = nn.Embedding(TRAINED, WIDTH), nn.Linear(DIMS, WIDTH), nn.Linear(WIDTH, DIMS)
        self.mix = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor, t: Tensor, z: Tensor) -> Tensor:
        tokens = torch.cat([z + self.time(t)[:, None], self.enter(x)], 1)
        return self.leave(self.mix(tokens)[:, -HORIZON:])

    def forward_with_cfg(self, x: Tensor, t: Tensor, z: Tensor, cfg_scale: float) -> Tensor:
        half = x[: len(x) // 2]
        with_z, without = self.forward(torch.cat([half, half]), t, z).chunk(2)
        return torch.cat([without + cfg_scale * (with_z - without)] * 2)


class ActionModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_channels, self.diffusion_steps, self.net = DIMS, TRAINED, Net()
        self.diffusion, self.ddim_diffusion = Diffusion(list(range(TRAINED))), None

    def create_ddim(self, ddim_step: int = 4) -> Any:
        for stride in range(1, TRAINED):
            if len(range(0, TRAINED, stride)) == ddim_step:
                self.ddim_diffusion = Diffusion(list(range(0, TRAINED, stride)))
                return self.ddim_diffusion
        raise ValueError(f"cannot create exactly {ddim_step} steps with an integer stride")


class Framework(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config, self.vlm, self.action_model = SimpleNamespace(), nn.Linear(3, WIDTH), ActionModel()
        self.action_model.create_ddim(4)

    def encode(self, images: Tensor) -> Tensor:
        return self.vlm(images)[:, None]

    @torch.inference_mode()
    def predict_action(self, images: Tensor, cfg_scale: float = 1.5, use_ddim: bool = True) -> Tensor:
        features, head = self.encode(images), self.action_model
        noise = torch.randn(len(images), HORIZON, head.in_channels)
        condition: dict[str, Any] = {"z": features}
        network = head.net.forward
        if cfg_scale > 1:
            noise, network = torch.cat([noise, noise]), head.net.forward_with_cfg
            missing = head.net.z_embedder.uncondition.unsqueeze(0).expand(len(images), 1, -1)
            condition = {"z": torch.cat([features, missing]), "cfg_scale": cfg_scale}
        options = {"clip_denoised": False, "model_kwargs": condition, "progress": False, "device": noise.device}
        if use_ddim:
            samples = head.ddim_diffusion.ddim_sample_loop(network, noise.shape, noise, **options, eta=0.0)
        else:
            samples = head.diffusion.p_sample_loop(network, noise.shape, noise, **options)
        return samples.chunk(2)[0] if cfg_scale > 1 else samples


def predict(framework: Framework, rows: int, **options: Any) -> Tensor:
    images = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows))
    return framework.predict_action(images, **options)
