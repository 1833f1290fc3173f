"""The seam of OpenVLA-OFT: a language model that denoises the embeddings of actions, one observation at a time."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from .diffusion_like import DDIMScheduler

WIDTH, HORIZON, DIMS, PATCHES, WORDS = 16, 4, 3, 5, 2


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        hidden = self.mix(inputs_embeds, src_key_padding_mask=~attention_mask)
        return SimpleNamespace(hidden_states=(inputs_embeds, hidden))


class DiffusionHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.noise_scheduler, self.linear = DDIMScheduler(), nn.Linear(WIDTH * DIMS, DIMS)
        self.noise_scheduler.set_timesteps(5)

    def time_encoder(self, time: Tensor) -> Tensor:
        return (time[:, None] * torch.linspace(0.01, 1, WIDTH)).sin()

    def predict_noise(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden.reshape(len(hidden), HORIZON, -1))


class OpenVLALike(nn.Module):
    """Its caller passes the head to every call."""

    def __init__(self) -> None:
        super().__init__()
        self.vision, self.language_model = nn.Linear(3, WIDTH), LanguageModel()
        self.words = nn.Parameter(torch.randn(1, 1 + WORDS + HORIZON * DIMS, WIDTH))

    def _process_vision_features(self, pixel_values: Tensor) -> Tensor:
        return self.vision(pixel_values)

    def _replace_input_embeddings(self, embeddings: Tensor, mask: Tensor, features: Tensor) -> Tensor:
        return embeddings.masked_scatter(mask[..., None], features)

    def _build_multimodal_attention(self, embeddings: Tensor, patches: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.ones(patches.shape[:2], dtype=torch.bool)
        return tuple(torch.cat([one[:, :1], two, one[:, 1:]], 1) for one, two in ((embeddings, patches), (mask, seen)))  # type: ignore[return-value]

    def _run_diffusion_prediction(
        self, input_embeddings: Tensor, all_actions_mask: Tensor, noise: Tensor, action_head: Any,
        projected_patch_embeddings: Tensor, labels: Tensor, attention_mask: Tensor, NUM_PATCHES: int, NUM_PROMPT_TOKENS: int,
        noisy_action_projector: Any,
    ) -> tuple[Any, Tensor]:  # fmt: skip
        for t in action_head.noise_scheduler.timesteps:
            time = action_head.time_encoder(torch.Tensor([t]))[:, None]
            features = noisy_action_projector(noise.reshape(1, -1, 1))
            inputs, mask = self._build_multimodal_attention(
                self._replace_input_embeddings(input_embeddings, all_actions_mask, features),
                torch.cat([projected_patch_embeddings, time], 1),
                attention_mask,
            )
            first = NUM_PATCHES + NUM_PROMPT_TOKENS
            last = self.language_model(inputs_embeds=inputs, attention_mask=mask).hidden_states[-1]
            hidden = last[:, first : first + HORIZON * DIMS]
            noise = action_head.noise_scheduler.step(action_head.predict_noise(hidden), t, noise).prev_sample
        return noise.reshape(HORIZON, DIMS).float().cpu().numpy(), hidden

    def _regression_or_discrete_prediction(self) -> tuple[Any, Tensor]:
        return torch.zeros(HORIZON, DIMS).numpy(), torch.zeros(1, HORIZON * DIMS, WIDTH)

    def predict_action(self, pixel_values: Tensor, action_head: Any, noisy_action_projector: Any) -> tuple[Any, Tensor]:
        patches = self._process_vision_features(pixel_values)
        if noisy_action_projector is None:
            return self._regression_or_discrete_prediction()
        mask = torch.arange(self.words.shape[1])[None] > WORDS
        seen, noise = torch.ones_like(mask), torch.randn(1, HORIZON, DIMS)
        return self._run_diffusion_prediction(
            self.words, mask, noise, action_head, patches, seen, seen, PATCHES + 1, WORDS + 1, noisy_action_projector
        )


class Robot(nn.Module):
    """As the project's evaluations: the model, and the head that they pass to it."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.head, self.projector = OpenVLALike(), DiffusionHead(), nn.Linear(1, WIDTH)


def answer(robot: Any, diffusion: bool = True) -> tuple[Any, Tensor]:
    pixels = torch.randn(1, PATCHES, 3, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        return robot.model.predict_action(pixels, robot.head, robot.projector if diffusion else None)


def predict(robot: Any, rows: int) -> Tensor:
    assert rows == 1
    return torch.from_numpy(answer(robot)[0])[None]
