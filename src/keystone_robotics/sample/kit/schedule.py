"""Noise schedules of diffusion (DDPM, DDIM and the like, from diffusers)."""

from __future__ import annotations

from typing import Any


def refuse_more_than_trained(scheduler: Any, steps: int) -> str:
    """Why a scheduler cannot denoise in that many steps; empty if it can.

    >>> from types import SimpleNamespace
    >>> scheduler = SimpleNamespace(config=SimpleNamespace(num_train_timesteps=100))
    >>> refuse_more_than_trained(scheduler, 10), refuse_more_than_trained(scheduler, 101)
    ('', 'the noise schedule has 100 steps; expected 1 to 100')
    """
    trained = int(scheduler.config.num_train_timesteps)
    return "" if steps <= trained else f"the noise schedule has {trained} steps; expected 1 to {trained}"
