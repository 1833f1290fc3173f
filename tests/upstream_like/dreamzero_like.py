"""A small action head that works as DreamZero's: the observation goes into a cache, then video and actions are denoised."""

import abc
from typing import Any

import torch
from torch import Tensor, nn

from keystone_robotics import ActionSpace

FRAME, HORIZON, DIMS, WIDTH = 4, 6, 3, 8
REAL = {"space": ActionSpace(dims=DIMS, steps=HORIZON)}


class Encoder(nn.Linear):
    def encode_image(self, image: Tensor) -> Tensor:
        return self(image)

    encode = encode_image


class Transformer(nn.Module):
    """One token of all there is, which attends to the cache (2, B, L, W) and to itself."""

    action_dim = DIMS

    def __init__(self) -> None:
        super().__init__()
        self.video, self.actions = nn.Linear(FRAME, WIDTH), nn.Linear(HORIZON * DIMS, WIDTH)
        self.state, self.y, self.clip = nn.Linear(2, WIDTH), nn.Linear(FRAME, WIDTH), nn.Linear(FRAME, WIDTH)
        self.out = nn.Linear(WIDTH, FRAME + HORIZON * DIMS)

    def forward(
        self, noisy_input: Tensor, timestep: Tensor, action: Any, state: Any, context: Tensor, y: Tensor, clip_feature: Tensor,
        kv_cache: Tensor, **_: Any,
    ) -> tuple[Tensor, Any, Tensor]:  # fmt: skip
        token = self.video(noisy_input.mean(1)) + context + self.y(y) + self.clip(clip_feature) + timestep
        if action is not None:
            token = token + self.actions(action.flatten(1)) + self.state(state)
        keys, values = kv_cache = torch.cat([kv_cache, token.expand(2, 1, -1, -1).transpose(1, 2)], 2)
        weights = torch.softmax((keys * token[:, None]).sum(-1, keepdim=True), 1)
        video, actions = self.out((weights * values).sum(1).tanh()).split([FRAME, HORIZON * DIMS], 1)
        return video[:, None], None if action is None else actions.unflatten(1, (HORIZON, DIMS)), kv_cache


class DreamZeroLike(nn.Module, abc.ABC):
    def __init__(self) -> None:
        super().__init__()
        self.text_encoder, self.image_encoder, self.vae = (Encoder(size, size) for size in (WIDTH, FRAME, FRAME))
        self.model = Transformer()
        self.num_inference_steps, self.seed, self.ip_size, self._device = 4, 1140, 1, "cpu"
        self.dynamic_cache_schedule, self.dit_step_mask, self.action_horizon = False, [True] * 4, HORIZON
        self.kv_cache1 = self.kv_cache_neg = self.clip_feas = self.ys = self.language = None
        self.current_start_frame = 0

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def generate_noise(self, shape: Any, seed: Any = None, device: str = "cpu", dtype: Any = None) -> Tensor:
        return torch.randn(shape, generator=torch.Generator(device).manual_seed(seed), device=device, dtype=dtype)

    def encode_image(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.image_encoder.encode_image(image[:, 0]), image[:, 0].sin(), self.vae.encode(image)

    def _run_diffusion_steps(
        self, noisy_input: Tensor, timestep: Tensor, action: Any, state: Any, embodiment_id: Any, context: Any, y: Tensor,
        clip_feature: Tensor, kv_caches: Any, kv_cache_metadata: dict[str, Any],
    ) -> list[tuple[Tensor, Any]]:  # fmt: skip
        predictions = []
        for prompt, cache in zip(context, kv_caches, strict=True):
            video, actions, updated = self.model(
                noisy_input, timestep, action, state, prompt, y, clip_feature, kv_cache=cache[0]
            )
            if kv_cache_metadata["update_kv_cache"]:
                cache[0] = updated
            predictions.append((video, actions))
        return predictions

    def lazy_joint_video_action(self, backbone_output: Any, action_input: Any, latent_video: Any = None) -> Any:
        images = action_input["images"]
        if not torch.equal(self.language if self.language is not None else torch.zeros(0), action_input["text"]):
            self.language, self.current_start_frame = action_input["text"], 0
        prompts = [self.text_encoder(action_input["text"]), self.text_encoder(torch.zeros_like(action_input["text"]))]
        if self.current_start_frame == 0:
            self.clip_feas, self.ys, image = self.encode_image(images)
        else:
            image = self.vae.encode(images)
        options = {"seed": self.seed, "device": self._device, "dtype": self.dtype}
        video = self.generate_noise((len(image), 2, FRAME), **options)
        actions = self.generate_noise((len(image), HORIZON, DIMS), **options)
        if self.current_start_frame == 0:
            self.kv_cache1, self.kv_cache_neg = ([torch.zeros(2, len(video), 0, WIDTH)] for _ in range(2))
        fixed = {
            "context": prompts, "y": self.ys, "clip_feature": self.clip_feas, "kv_caches": [self.kv_cache1, self.kv_cache_neg]
        }  # fmt: skip
        time = torch.zeros(len(video), 1)
        self._run_diffusion_steps(
            noisy_input=image, timestep=time, action=None, state=None, embodiment_id=None,
            kv_cache_metadata={"update_kv_cache": True}, **fixed,
        )  # fmt: skip
        for step in range(self.num_inference_steps):
            (flow, flow_actions), (against, _) = self._run_diffusion_steps(
                noisy_input=video, timestep=time + step, action=actions, state=action_input["state"],
                embodiment_id=action_input["embodiment_id"], kv_cache_metadata={"update_kv_cache": False}, **fixed,
            )  # fmt: skip
            video = video - (against + 5.0 * (flow - against)) / self.num_inference_steps
            actions = actions - flow_actions / self.num_inference_steps
        output = torch.cat([image, video], 1) if self.current_start_frame == 0 else video
        self.current_start_frame += 1
        return {"action_pred": actions, "video_pred": output}


def inputs(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = {"images": (1, FRAME), "state": (2,), "text": (WIDTH,)}
    drawn = {name: torch.randn(rows, *shape, generator=generator) for name, shape in shapes.items()}
    return {**drawn, "embodiment_id": torch.zeros(rows, dtype=torch.long)}


def predict(head: Any, rows: int) -> Tensor:
    chunk: Tensor = head.lazy_joint_video_action(None, inputs(rows))["action_pred"]
    return chunk
