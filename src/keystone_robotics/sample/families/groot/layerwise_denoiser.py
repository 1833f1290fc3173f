"""GR00T's diffusion transformer (see `dit`) with a context for each of its blocks, as StarVLA's π heads use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.families.groot.denoiser import ITSELF, modulations_of, project, through_blocks
from keystone_robotics.sample.kit.cross_attention import compact


class SharedLayers:
    """The blocks as a function of tokens and the number of the step, without the network's last norm and projection.

    Args:
        network: one that `dit.recognises` knows.
        contexts: (B, L, E) for each block, also for those that look at their own tokens.
        looks: what each block attends to, see `dit.looks_at`.
        times: (N,) the time of every step, as the network takes it.
        mask: (B, L) bool, True for tokens that blocks may look at, the same in all layers; None if all.
        run: `dit.through_blocks`, or a compiled one.

    Attributes:
        seen: by each block, see `dit.through_blocks`.
    """

    def __init__(
        self,
        network: Any,
        contexts: Sequence[Tensor],
        looks: Sequence[str],
        times: Tensor,
        mask: Tensor | None = None,
        run: Callable[..., Tensor] = through_blocks,
    ) -> None:
        self._network, self._run = network, run
        rows, length = contexts[0].shape[:2]
        everywhere = torch.arange(length, device=contexts[0].device).expand(rows, length)
        places, mask = compact(everywhere[..., None], mask)  # once for all layers: that waits for the device

        def visible(context: Tensor) -> Tensor:
            return context if places.shape[1] == length else context.gather(1, places.expand(-1, -1, context.shape[-1]))

        self.seen = [
            None if look == ITSELF else project(block.attn1, visible(context), mask)
            for look, block, context in zip(looks, network.transformer_blocks, contexts, strict=True)
        ]
        self._modulations = modulations_of(network, times)

    def __call__(self, tokens: Tensor, step: int) -> Tensor:
        """(B * K, S, E) tokens of all candidates at ``times[step]`` to as many tokens."""
        return self._run(self._network, self.seen, *self._modulations[step], tokens)
