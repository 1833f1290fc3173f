"""Candidates side by side in one sequence: how π0, π0.5 and SmolVLA share the prefix on the plain path, in their own code.

A wider batch would copy the prefix K times in every layer of every step (the caches concatenate). Instead the batch stays B
wide and the K action suffixes lie one after the other along the sequence; a mask lets each see the prefix and itself alone, and
all count their positions from the end of the prefix. A candidate then computes what it would compute alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.kit.rounds import sharing
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class Packed(NamedTuple):
    """K suffixes of S tokens behind one prefix of P tokens.

    Attributes:
        tokens: (B, K * S, E) embeddings.
        mask: (B, K * S, P + K * S) bool, True where a token may look.
        positions: (B, K * S) of the tokens, counted from the first token of the prefix.
    """

    tokens: Tensor
    mask: Tensor
    positions: Tensor


def visible_among(padding: Tensor, blocks: Tensor) -> Tensor:
    """(R, S, S) bool: which tokens of a suffix see which, from its padding and blocks (R, S) as `pack` takes them."""
    block = blocks.cumsum(dim=1)
    return (block[:, None, :] <= block[:, :, None]) & padding[:, None, :] & padding[:, :, None]


def pack(tokens: Tensor, padding: Tensor, blocks: Tensor, prefix_padding: Tensor) -> Packed:
    """Lay the suffixes of K candidates behind each other.

    Args:
        tokens: (B * K, S, E) embeddings of the suffixes.
        padding: (B * K, S) True for real tokens.
        blocks: (B * K, S) of the suffix as `make_att_2d_masks` takes it: 1 where a new block of attention begins.
        prefix_padding: (B, P) True for real tokens.

    >>> suffix = torch.zeros(2, 1, 4)
    >>> packed = pack(suffix, torch.ones(2, 1).bool(), torch.ones(2, 1), torch.tensor([[True, True, False]]))
    >>> packed.mask.int().tolist(), packed.positions.tolist()
    ([[[1, 1, 0, 1, 0], [1, 1, 0, 0, 1]]], [[2, 2]])
    """
    (batch, prefix), (rows, length) = prefix_padding.shape, padding.shape
    k = rows // batch
    own = visible_among(padding, blocks)
    apart = torch.eye(k, dtype=torch.bool, device=tokens.device)[:, None, :, None]
    among = (own.view(batch, k, length, 1, length) & apart).reshape(batch, k * length, k * length)
    before = prefix_padding[:, None, :].expand(batch, k * length, prefix)
    offsets = prefix_padding.sum(dim=1)[:, None, None]
    positions = offsets + padding.view(batch, k, length).cumsum(dim=2) - 1
    return Packed(
        tokens.reshape(batch, k * length, -1), torch.cat([before, among], dim=2), positions.view(batch, k * length)
    )


def share_cache(cache: Any) -> Any:
    """A cache to which a step may append: its own container around the very same tensors.

    Appending binds new tensors to the layers and never writes into the old ones.
    """
    shared = copy.copy(cache)
    shared.layers = [copy.copy(layer) for layer in cache.layers]
    return shared


class PackedOverride(SamplerOverride):
    """On ``policy.model``: the original sampler with noise of B * K rows, and a denoising step that packs or folds them."""

    def _run(self, sample: Callable[..., Tensor], batch: int, device: torch.device, options: dict[str, Any]) -> Tensor:
        """A round on ``sample(noise=..., **options)``; the options are those of real-time chunking, and `num_steps`."""
        shape = (self.config.chunk_size, self.config.max_action_dim)

        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            with sharing(shared):  # which `denoise_step` asks for
                return sample(noise=noise, **_widen_leftover(options, batch, k))

        chunk: Tensor = self._keystone.run(
            SampleRequest(
                single=lambda: sample(**options),
                wide=draw,
                shared=partial(draw, shared=True) if self._may_share() else None,
                noise=NoiseSpec(batch=batch, shape=shape, device=device),
                delay=options.get("inference_delay") or 0,
                guided=options.get("prev_chunk_left_over") is not None,
            )
        )
        return chunk

    def _may_share(self) -> bool:
        """Whether nothing was put on the network that the fast path bypasses."""
        raise NotImplementedError


def _widen_leftover(options: dict[str, Any], batch: int, k: int) -> dict[str, Any]:
    """The rest of the previous chunk, (T, D) or (B, T, D), for every candidate."""
    leftover = options.get("prev_chunk_left_over")
    if leftover is None:
        return options
    rows = leftover if leftover.ndim == 3 else leftover.unsqueeze(0)
    return {**options, "prev_chunk_left_over": widen(rows.expand(batch, *rows.shape[1:]), k)}


class PackedAdapter(Adapter):
    """What the adapters of the three families have in common."""

    shared_context = "keys and values of the prefix (one copy, whatever K)"
    sampler = "model"
    encoders = ("model.embed_prefix",)
    compiles = True

    def encoder_modules(self, policy: Any) -> Sequence[Any]:
        """The vision-language model: past the prefix, its expert runs alone."""
        model = policy.model
        if hasattr(model, "vlm_with_expert"):
            return [model.vlm_with_expert.vlm]
        return [model.paligemma_with_expert.paligemma]

    def step_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        return [(policy.model, "denoise_step")]
