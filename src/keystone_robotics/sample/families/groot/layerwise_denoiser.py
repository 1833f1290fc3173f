"""GR00T's diffusion transformer (see `denoiser`) with one context per block, as in StarVLA's π heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.families.groot.denoiser import SELF, modulations_of, project, run_blocks
from keystone_robotics.sample.kit.cross_attention import compact


class SharedLayers:
    """The blocks as a function of tokens and step index, without the network's output norm and projection.

    Args:
        network: a supported one, see `denoiser.recognises`.
        contexts: (B, L, E) for each block, including self-attention blocks.
        targets: what each block attends to, see `denoiser.attention_targets`.
        times: (N,) the time of every step, as the network takes it.
        mask: (B, L) bool, False for masked tokens, the same in all layers; None without a mask.
        run: `denoiser.run_blocks`, or its compiled version.

    Attributes:
        keys_values: of each block, see `denoiser.run_blocks`.
    """

    def __init__(
        self,
        network: Any,
        contexts: Sequence[Tensor],
        targets: Sequence[str],
        times: Tensor,
        mask: Tensor | None = None,
        run: Callable[..., Tensor] = run_blocks,
    ) -> None:
        self._network, self._run = network, run
        rows, length = contexts[0].shape[:2]
        positions = torch.arange(length, device=contexts[0].device).expand(rows, length)
        indices, mask = compact(positions[..., None], mask)  # once for all layers: it synchronises the device

        def visible(context: Tensor) -> Tensor:
            return (
                context if indices.shape[1] == length else context.gather(1, indices.expand(-1, -1, context.shape[-1]))
            )

        self.keys_values = [
            None if target == SELF else project(block.attn1, visible(context), mask)
            for target, block, context in zip(targets, network.transformer_blocks, contexts, strict=True)
        ]
        self._modulations = modulations_of(network, times)

    def __call__(self, tokens: Tensor, step: int) -> Tensor:
        """(B * K, S, E) tokens of all candidates at ``times[step]`` to tokens of the same shape."""
        return self._run(self._network, self.keys_values, *self._modulations[step], tokens)
