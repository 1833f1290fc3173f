"""K candidates in one sequence: how π0, π0.5 and SmolVLA share the prefix on the plain path, in their own code.

A batch of B * K rows would copy the prefix K times in every layer of every step (the caches concatenate). Instead the batch
has B rows, and the K action suffixes are concatenated along the sequence. A mask restricts each to the prefix and itself, and
their positions all start after the prefix. Each candidate is computed exactly as it would be alone.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.lengths import mark_dynamic_lengths
from keystone_robotics.sample.kit.rounds import is_sharing, once_per_round, sharing
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class Packed(NamedTuple):
    """K suffixes of S tokens behind one prefix of P tokens.

    Attributes:
        tokens: (B, K * S, E) embeddings.
        mask: (B, K * S, P + K * S) bool, True where a token may attend.
        positions: (B, K * S) of the tokens, counted from the first token of the prefix.
    """

    tokens: Tensor
    mask: Tensor
    positions: Tensor


def suffix_mask(padding: Tensor, blocks: Tensor) -> Tensor:
    """Attention mask (R, S, S) bool within a suffix, from its padding and blocks (R, S) as in `pack`."""
    block = blocks.cumsum(dim=1)
    return (block[:, None, :] <= block[:, :, None]) & padding[:, None, :] & padding[:, :, None]


def pack(tokens: Tensor, padding: Tensor, blocks: Tensor, prefix_padding: Tensor) -> Packed:
    """Concatenate the suffixes of K candidates along the sequence.

    Args:
        tokens: (B * K, S, E) embeddings of the suffixes.
        padding: (B * K, S) True for real tokens.
        blocks: (B * K, S) as in `make_att_2d_masks`: 1 where a new attention block begins.
        prefix_padding: (B, P) True for real tokens.

    >>> suffix = torch.zeros(2, 1, 4)
    >>> packed = pack(suffix, torch.ones(2, 1).bool(), torch.ones(2, 1), torch.tensor([[True, True, False]]))
    >>> packed.mask.int().tolist(), packed.positions.tolist()
    ([[[1, 1, 0, 1, 0], [1, 1, 0, 0, 1]]], [[2, 2]])
    """
    (batch, prefix), (rows, length) = prefix_padding.shape, padding.shape
    k = rows // batch
    own = suffix_mask(padding, blocks)
    same_candidate = torch.eye(k, dtype=torch.bool, device=tokens.device)[:, None, :, None]
    to_suffixes = (own.view(batch, k, length, 1, length) & same_candidate).reshape(batch, k * length, k * length)
    to_prefix = prefix_padding[:, None, :].expand(batch, k * length, prefix)
    offsets = prefix_padding.sum(dim=1)[:, None, None]
    positions = offsets + padding.view(batch, k, length).cumsum(dim=2) - 1
    return Packed(
        tokens.reshape(batch, k * length, -1),
        torch.cat([to_prefix, to_suffixes], dim=2),
        positions.view(batch, k * length),
    )


def share_cache(cache: Any) -> Any:
    """A shallow copy of a cache, to which a step may append without changing the original.

    Appending assigns new tensors to the layers; it never writes into the old ones.
    """
    shared = copy.copy(cache)
    shared.layers = [copy.copy(layer) for layer in cache.layers]
    return shared


class PackedStep(SamplerOverride):
    """A denoising step for K candidates on one prefix: on the model that holds the experts.

    Attributes:
        _denoiser: the family's module with ``BYPASS``, ``prepare`` and ``denoise``, the expert on a shared prefix.
        _experts: the model's attribute that holds the vision-language model and the action expert.
    """

    _denoiser: Any
    _experts: str

    def _velocity(self, suffix: tuple[Any, ...], prefix_pad_masks: Tensor, past_key_values: Any, steps: int) -> Tensor:
        """The velocity (B * K, T, D) of suffixes as `embed_suffix` returns them, the last ``steps`` tokens of each."""
        tokens, padding, blocks, *condition = suffix
        # A sampler that is compiled as a whole takes the plain path; reading the context variable would break its graph.
        if not torch.compiler.is_compiling() and is_sharing():
            shared = once_per_round(
                lambda: self._prepare(prefix_pad_masks, past_key_values, suffix_mask(padding[:1], blocks[:1])[0])
            )
            hidden = self._keystone.compiled_step(self._denoiser.denoise)(shared, tokens, *condition)
        else:
            hidden = self._keystone.compiled_step(type(self)._packed)(
                self, tokens, padding, blocks, prefix_pad_masks, past_key_values, *condition
            )
        hidden = hidden.reshape(*tokens.shape[:2], -1)[:, -steps:]
        return self.action_out_proj(hidden.to(torch.float32))  # type: ignore[no-any-return]

    def _prepare(self, prefix_pad_masks: Tensor, past_key_values: Any, visible: Tensor) -> Any:
        """The values that the steps of a round share on the fast path."""
        shared = self._denoiser.prepare(getattr(self, self._experts), prefix_pad_masks, past_key_values, visible)
        if self._keystone.compile:
            mark_dynamic_lengths(shared.contexts)
        return shared

    def _packed(
        self, tokens: Tensor, padding: Tensor, blocks: Tensor, prefix_pad_masks: Tensor, cache: Any, *condition: Any
    ) -> Tensor:
        """The expert's own code on packed suffixes: (B, K * S, E)."""
        return self._own_expert(pack(tokens, padding, blocks, prefix_pad_masks), cache, *condition)

    def _own_expert(self, packed: Packed, past_key_values: Any, *condition: Any) -> Tensor:
        raise NotImplementedError

    def may_share(self) -> bool:
        """Whether the fast path would skip no hook or replaced method."""
        return may_bypass(self._keystone, self._denoiser.BYPASS, getattr(self, self._experts))


class PackedOverride(PackedStep):
    """On ``policy.model``: LeRobot's sampler with noise of B * K rows, which its denoising step packs or folds."""

    def sample_actions(self, *args: Any, **kwargs: Any) -> Any:
        own, engine = super().sample_actions, self._keystone  # type: ignore[misc]
        # Versions differ in what comes before the noise.
        options = dict(inspect.signature(own).bind(*args, **kwargs).arguments)
        options |= options.pop("kwargs", {})  # of real-time chunking
        if name := engine.adapter.steps_argument:
            options[name] = engine.steps or options.get(name)
        noise, rows = options.pop("noise", None), options["state" if "state" in options else "tokens"]
        if noise is not None:  # the caller's own: nothing to select from
            return engine.at_steps(own)(noise=noise, **options)
        batch = rows.shape[0]

        def draw(noise: Tensor, k: int, shared: bool = False) -> Any:
            with sharing(shared):  # read by `_velocity`
                return own(noise=noise, **_widen_leftover(options, batch, k))

        return engine.run(
            SampleRequest(
                single=partial(own, **options),
                wide=draw,
                shared=partial(draw, shared=True) if self.may_share() else None,
                noise=NoiseSpec(batch, (self.config.chunk_size, self.config.max_action_dim), rows.device),
                delay=options.get("inference_delay") or 0,
                guided=options.get("prev_chunk_left_over") is not None,
            )
        )


def _widen_leftover(options: dict[str, Any], batch: int, k: int) -> dict[str, Any]:
    """The rest of the previous chunk, (T, D) or (B, T, D), for every candidate."""
    leftover = options.get("prev_chunk_left_over")
    if leftover is None:
        return options
    rows = leftover if leftover.ndim == 3 else leftover.unsqueeze(0)
    return {**options, "prev_chunk_left_over": widen(rows.expand(batch, *rows.shape[1:]), k)}


class PackedAdapter(Adapter):
    """Base of the adapters of π0, π0.5 and SmolVLA."""

    shared_context = "keys and values of the prefix (one copy, independent of K)"
    sampler = "model"
    encoders = ("model.embed_prefix",)
    compiles = True

    def encoder_modules(self, policy: Any) -> Sequence[Any]:
        """The vision-language model; after the prefix, only the expert runs."""
        model = policy.model
        if hasattr(model, "vlm_with_expert"):
            return [model.vlm_with_expert.vlm]
        return [model.paligemma_with_expert.paligemma]

    def step_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        return [(policy.model, "denoise_step")]
