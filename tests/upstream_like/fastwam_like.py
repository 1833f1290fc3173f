"""The seam of Fast-WAM: one observation at a time, a cache of the video expert, and noise from a seed."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from .mot_like import WIDTH, ActionDiT, MoT

TOKENS, DIMS = 6, 14


class Scheduler:
    """Straight from noise to actions."""

    def build_inference_schedule(
        self, num_inference_steps: int, device: Any, dtype: torch.dtype, shift_override: float | None = None
    ) -> tuple[Tensor, Tensor]:
        times = torch.linspace(1.0, 0.0, num_inference_steps + 1, device=device, dtype=dtype) ** (shift_override or 2.0)
        return 1000 * times[:-1], times[1:] - times[:-1]

    def step(self, velocity: Tensor, delta: Tensor, sample: Tensor) -> Tensor:
        return sample + velocity * delta


class FastWAMLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.device, self.torch_dtype = torch.device("cpu"), torch.float32
        self.infer_action_scheduler = Scheduler()
        self.vae = nn.Conv2d(3, WIDTH, 16, 16)
        self.action_expert = ActionDiT(DIMS, WIDTH)
        self.mot = MoT(self.action_expert)

    def _encode_input_image_latents_tensor(self, input_image: Tensor, tiled: bool = False) -> Tensor:
        return self.vae(input_image).flatten(2).mT

    @torch.no_grad()
    def _predict_action_noise_with_cache(
        self,
        latents_action: Tensor,
        timestep_action: Tensor,
        context: Tensor,
        context_mask: Tensor,
        video_kv_cache: list[dict[str, Tensor]],
        attention_mask: Tensor,
        video_seq_len: int,
    ) -> Tensor:
        state = self.action_expert.pre_dit(latents_action, timestep_action, context, context_mask)
        mask = attention_mask[video_seq_len:]
        tokens = self.mot.forward_action_with_video_cache(state["tokens"], state, video_kv_cache, mask)
        return self.action_expert.post_dit(tokens, state)

    @torch.no_grad()
    def infer_action(
        self,
        prompt: str | None,
        input_image: Tensor,
        action_horizon: int,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        num_inference_steps: int = 20,
        sigma_shift: float | None = None,
        seed: int | None = None,
        rand_device: str = "cpu",
        tiled: bool = False,
    ) -> dict[str, Tensor]:
        self.eval()
        generator = None if seed is None else torch.Generator(device=rand_device).manual_seed(seed)
        actions = torch.randn((1, action_horizon, DIMS), generator=generator, device=rand_device, dtype=torch.float32)
        actions = actions.to(device=self.device, dtype=self.torch_dtype)
        video = self._encode_input_image_latents_tensor(input_image=input_image, tiled=tiled)
        cache = self.mot.prefill_video_cache(video_tokens=video)
        length = video.shape[1]
        mask = torch.ones(length + action_horizon, length + action_horizon, dtype=torch.bool)
        mask[:, 1] = False  # one that no action sees, and one that some do not
        mask[length + 3 :, 2] = False
        times, deltas = self.infer_action_scheduler.build_inference_schedule(
            num_inference_steps=num_inference_steps, device=self.device, dtype=actions.dtype, shift_override=sigma_shift
        )
        for time, delta in zip(times, deltas, strict=True):
            velocity = self._predict_action_noise_with_cache(
                latents_action=actions, timestep_action=time.unsqueeze(0), context=context, context_mask=context_mask,
                video_kv_cache=cache, attention_mask=mask, video_seq_len=length,
            )  # fmt: skip
            actions = self.infer_action_scheduler.step(velocity, delta, actions)
        return {"action": actions[0].detach().to(device="cpu", dtype=torch.float32)}


class ImaginesVideos(FastWAMLike):
    """Like the variants that denoise video and actions together."""

    def infer_action(self, prompt: str | None, num_video_frames: int, **options: Any) -> dict[str, Tensor]:  # type: ignore[override]
        raise AssertionError("never called")


class OtherMoT(MoT):
    """One that is not known by its name."""


class WithOtherMoT(FastWAMLike):
    def __init__(self) -> None:
        super().__init__()
        self.mot = OtherMoT(self.action_expert)


def policy(model: FastWAMLike) -> Any:
    """Like the policy of its RoboTwin evaluation."""
    return SimpleNamespace(model=model, replan_steps=3)


def predict(model: FastWAMLike, rows: int, seed: int | None = None) -> Tensor:
    assert rows == 1
    generator = torch.Generator().manual_seed(1)
    return model.infer_action(
        prompt=None,
        input_image=torch.rand(1, 3, 32, 48, generator=generator),
        action_horizon=8,
        context=torch.randn(1, TOKENS, WIDTH, generator=generator),
        context_mask=torch.arange(TOKENS)[None] < 5,
        num_inference_steps=4,
        seed=seed,
    )["action"][None]
