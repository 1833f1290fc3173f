"""The seam of Cosmos Policy: latent frames denoised together, of which one holds copies of the actions; noise from numpy."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CHANNELS, FRAMES, SIZE, ACTION_FRAME, STEPS, DIMS = 4, 4, 16, 2, 16, 7


class Encoder(nn.Module):
    """Videos (B, 3, F, H, W) to latents (B, C, F, H / 2, W / 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv3d(3, CHANNELS, (1, 2, 2), (1, 2, 2))

    def forward(self, video: Tensor) -> Tensor:
        return self.convolution(video)


class Denoiser(nn.Module):
    """The condition and noisy latents of that size to clean ones."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv3d(2 * CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, condition: Tensor, noisy: Tensor, sigma: Tensor) -> Tensor:
        scale = (1 + sigma.float().view(-1, 1, 1, 1, 1) ** 2).sqrt()
        return self.convolution(torch.cat([condition, noisy.float() / scale], 1)).tanh() + 0.3 * noisy.float() / scale


def parts() -> dict[str, Any]:
    """What a model has besides its sampling."""
    return {
        "encoder": Encoder(),
        "denoiser": Denoiser(),
        "tokenizer": SimpleNamespace(spatial_compression_factor=2, get_latent_num_frames=lambda frames: frames),
        "config": SimpleNamespace(state_ch=CHANNELS, use_flowunipc_scheduler=False),
        "net": SimpleNamespace(is_context_parallel_enabled=False),
        "input_data_key": "video",
        "input_image_key": "images",
        "tensor_kwargs": {"device": "cpu", "dtype": torch.float32},
    }


class CosmosPolicyLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sde, self.sampler = SimpleNamespace(sigma_max=80.0), None
        for name, value in parts().items():
            setattr(self, name, value)

    def get_data_and_condition(self, data_batch: dict[str, Any]) -> tuple[Any, Tensor, Any]:
        return None, self.encoder(data_batch["video"]), None

    def get_x0_fn_from_batch(self, data_batch: dict[str, Any], encoded: Tensor | None) -> tuple[Any, Tensor]:
        x0 = self.get_data_and_condition(data_batch)[1] if encoded is None else encoded.clone()
        return lambda noisy, sigma: self.denoiser(x0, noisy, sigma), x0

    def generate_samples_from_batch(
        self, data_batch: dict[str, Any], guidance: float = 1.5, seed: int = 1, n_sample: int | None = None,
        num_steps: int = 35, x_sigma_max: Tensor | None = None, use_variance_scale: bool = False,
        skip_vae_encoding: bool = False, previous_generated_latent: Tensor | None = None,
        return_orig_clean_latent_frames: bool = False,
    ) -> Any:  # fmt: skip
        x0_fn, clean = self.get_x0_fn_from_batch(data_batch, previous_generated_latent if skip_vae_encoding else None)
        if x_sigma_max is None:
            drawn = np.random.RandomState(seed).standard_normal(clean.shape).astype(np.float32)
            x_sigma_max = torch.from_numpy(drawn) * self.sde.sigma_max
        samples = x_sigma_max
        for sigma, after in zip(
            80.0 / 2.0 ** torch.arange(num_steps), 40.0 / 2.0 ** torch.arange(num_steps), strict=True
        ):
            x0 = x0_fn(samples, sigma.expand(len(samples)))
            samples = x0 + (samples - x0) * (after / sigma)
        samples = x0_fn(samples, torch.full((len(samples),), 0.002))
        return (samples, clean) if return_orig_clean_latent_frames else samples


def observation(rows: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(rows)
    video = torch.randn(rows, 3, FRAMES, 2 * SIZE, 2 * SIZE, generator=generator)
    return {"video": video, "action_latent_idx": torch.full((rows,), ACTION_FRAME), "fps": 16, "proprio": None}


def chunk(latents: Tensor) -> Tensor:
    flat = latents[:, :, ACTION_FRAME].flatten(1)
    copies = flat.shape[1] // (STEPS * DIMS)
    return flat[:, : copies * STEPS * DIMS].view(len(latents), copies, STEPS, DIMS).mean(1)


def predict(model: Any, rows: int, **options: Any) -> Tensor:
    latents = model.generate_samples_from_batch(observation(rows), **{"num_steps": 4, "n_sample": rows, **options})
    return chunk(latents)


def predict_from_torch(model: Any, rows: int, **options: Any) -> Tensor:
    """The same with noise that a test can replace."""
    noise = torch.randn(rows, CHANNELS, FRAMES, SIZE, SIZE) * model.sde.sigma_max
    return predict(model, rows, x_sigma_max=noise, **options)
