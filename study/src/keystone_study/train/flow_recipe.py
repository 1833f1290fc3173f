"""Training of the compact flow-matching policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from keystone_study.policies.flow import FlowConfig, FlowPolicy, save_flow
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.expert import Expert
from keystone_study.train.windows import ACTION_FLOOR, OBSERVATION_FLOOR, cut_windows, statistics


class FlowRecipe:
    """A `Learner`: half a million parameters, about a minute for 4,000 iterations on one core.

    With images the encoder is most of the work: fewer of them in a batch, with several noises each.
    """

    learning_rate = 1e-3
    packages: tuple[str, ...] = ()

    def __init__(self, demonstrations: Sequence[Demonstration], expert: Expert, seed: int) -> None:
        one = demonstrations[0]
        seen = "agent_pos" if expert.image else "environment_state"
        config = FlowConfig(
            getattr(one, seen).shape[1],
            one.actions.shape[1],
            horizon=expert.horizon,
            n_action_steps=expert.n_action_steps,
            relative=expert.relative,
            width=expert.width,
            predicts="velocity" if one.actions.shape[1] * expert.horizon < expert.width else "chunk",
            image=expert.image,
        )
        windows = cut_windows(demonstrations, config.horizon, expert.motion, expert.relative)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module = FlowPolicy(config)
        observed = statistics(getattr(windows, seen), OBSERVATION_FLOOR)
        acted = statistics(windows.chunks, ACTION_FLOOR)
        self.module.observation_mean.copy_(torch.from_numpy(observed.mean))
        self.module.observation_std.copy_(torch.from_numpy(observed.std))
        self.module.action_mean.copy_(torch.from_numpy(acted.mean))
        self.module.action_std.copy_(torch.from_numpy(acted.std))
        self._numbers = torch.from_numpy(getattr(windows, seen))
        images = (
            expert.draw(windows.environment_state) if expert.image else np.empty((len(windows.chunks), 0), np.uint8)
        )
        self._images = torch.from_numpy(images)  # as bytes: a gigabyte for 40,000 of them
        self.batch, self._noises = (64, 4) if expert.image else (192, 1)
        self._chunks = torch.from_numpy(windows.chunks)
        self.examples = len(self._chunks)

    def loss(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        chunks = self._chunks[rows]
        noise = torch.randn(self._noises * len(rows), *chunks.shape[1:], generator=generator)
        time = torch.rand(len(noise), generator=generator)
        image = self._images[rows]
        if image.ndim == 4:
            image = image.permute(0, 3, 1, 2)
        return self.module.loss(torch.cat([self._numbers[rows], image.flatten(1)], 1), chunks, noise, time)

    def save(self, folder: Path) -> None:
        """Write the policy for `keystone_robotics.policies.load_agent`."""
        save_flow(self.module, folder)
