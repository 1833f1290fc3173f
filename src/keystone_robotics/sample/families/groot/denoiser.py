"""The diffusion transformer of the GR00T family for K candidates on a shared context.

LeRobot's GR00T N1.7, NVIDIA's Isaac-GR00T and StarVLA each have a copy of it (`DiT`, `AlternateVLDiT`), recognised by its
parts. The original code projects the context to keys and values for every candidate in every step. Here:

- keys and values of the context are projected once per round, only for tokens that are not masked;
- the candidates of an observation are queries of one row (see `cross_attention.cross_attend`);
- the time encoding and the scale and shift of every norm are computed once per round for all steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from keystone_robotics.sample.kit.bypass import Bypass
from keystone_robotics.sample.kit.cross_attention import KeysValues, compact, cross_attend, split_heads
from keystone_robotics.sample.kit.modulation import is_plain, modulate
from keystone_robotics.sample.proxies import original_class

#: What a block attends to.
SELF, CONTEXT, TEXT, IMAGES = "self", "context", "text", "images"

#: For the network. An inference engine or compiled function that replaces its ``forward``, or a block's, must be used.
BYPASS = Bypass(
    called_modules=frozenset(
        {
            "timestep_encoder", "linear", "pos_embed", "to_q", "to_k", "to_v", "to_out.0", "norm3", "ff", "proj_out_1",
            "proj_out_2",
        }
    )
)  # fmt: skip


class SharedDiT:
    """The network as a function of tokens and step index, for one context.

    Args:
        network: a supported one, see `recognises`.
        context: (B, L, E) vision-language tokens.
        times: (N,) the time of every step, as the network takes it.
        mask: (B, L) bool, False for masked tokens; None without a mask.
        image_mask: (B, L) bool, True for image tokens; for networks that alternate between text and images.
        run: `run_network`, or its compiled version.

    Attributes:
        keys_values: of each block, see `run_network`.
    """

    def __init__(
        self,
        network: Any,
        context: Tensor,
        times: Tensor,
        mask: Tensor | None = None,
        image_mask: Tensor | None = None,
        run: Callable[..., Tensor] | None = None,
    ) -> None:
        self._network, self._run = network, run or run_network
        targets, blocks = attention_targets(network), network.transformer_blocks
        masks = {CONTEXT: mask}
        if image_mask is not None:
            every = torch.ones_like(image_mask) if mask is None else mask
            masks |= {TEXT: ~image_mask & every, IMAGES: image_mask & every}
        visible = {name: compact(context, masks[name]) for name in {*targets} - {SELF}}
        self.keys_values = [
            None if target == SELF else project(block.attn1, *visible[target]) for target, block in zip(targets, blocks)
        ]
        self._modulations = modulations_of(network, times)

    def __call__(self, tokens: Tensor, step: int) -> Tensor:
        """(B * K, S, E) tokens of all candidates at ``times[step]`` to (B * K, S, output)."""
        return self._run(self._network, self.keys_values, *self._modulations[step], tokens)


def modulations_of(network: Any, times: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each of the times (N,): scales and shifts (blocks + 1, E) of every block's norm and of the output norm."""
    time = functional.silu(network.timestep_encoder(times))
    modulations = [block.norm1.linear(time).chunk(2, dim=1) for block in network.transformer_blocks]
    modulations.append(network.proj_out_1(time).chunk(2, dim=1)[::-1])  # here the shift comes first
    scales, shifts = (torch.stack(parts, dim=1) for parts in zip(*modulations))
    return list(zip(1 + scales, shifts))


def run_network(
    network: Any, keys_values: Sequence[KeysValues | None], scales: Tensor, shifts: Tensor, tokens: Tensor
) -> Tensor:
    """One denoising step.

    Args:
        network: a supported one, see `recognises`.
        keys_values: of each block; None for self-attention.
        scales: (blocks + 1, E) of every block's norm and of the output norm.
        shifts: (blocks + 1, E).
        tokens: (B * K, S, E).
    """
    hidden = run_blocks(network, keys_values, scales, shifts, tokens)
    output: Tensor = network.proj_out_2(modulate(network.norm_out, hidden, scales[-1], shifts[-1]))
    return output


def run_blocks(
    network: Any, keys_values: Sequence[KeysValues | None], scales: Tensor, shifts: Tensor, tokens: Tensor
) -> Tensor:
    """`run_network` without the output norm and projection."""
    hidden = tokens
    for block, context, scale, shift in zip(network.transformer_blocks, keys_values, scales, shifts):
        attention, normed = block.attn1, modulate(block.norm1.norm, hidden, scale, shift)
        if block.pos_embed is not None:
            normed = block.pos_embed(normed)
        mixed = cross_attend(attention.to_q(normed), project(attention, normed) if context is None else context)
        hidden = hidden + attention.to_out[0](mixed)
        hidden = hidden + block.ff(block.norm3(hidden))
    return hidden


def attention_targets(network: Any) -> list[str]:
    """What each block attends to; with interleaved self-attention, every second block to its own tokens."""
    # StarVLA may override its config and stores the result on the network.
    interleaves = getattr(network, "_interleave_self_attention", network.config.interleave_self_attention)
    period = 2 * getattr(network, "attend_text_every_n_blocks", 0)

    def target(index: int) -> str:
        if index % 2 and interleaves:
            return SELF
        if not period:
            return CONTEXT
        return IMAGES if index % period else TEXT

    return [target(index) for index in range(len(network.transformer_blocks))]


def recognises(network: Any) -> bool:
    """Whether `SharedDiT` supports this network; others run their own code."""
    if original_class(network).__name__ not in ("DiT", "AlternateVLDiT") or network.training:
        return False
    parts = ("timestep_encoder", "transformer_blocks", "norm_out", "proj_out_1", "proj_out_2", "config")
    return (
        all(hasattr(network, part) for part in parts)
        and hasattr(network.config, "interleave_self_attention")
        and is_plain(network.norm_out)
        and all(_recognises_block(block) for block in network.transformer_blocks)
    )


def _recognises_block(block: Any) -> bool:
    if not all(hasattr(block, part) for part in ("norm1", "attn1", "norm3", "ff", "pos_embed")):
        return False
    if not (hasattr(block.norm1, "linear") and is_plain(getattr(block.norm1, "norm", None))):
        return False  # another norm, without modulation by the time
    # NVIDIA's copy forces the math backend on devices where the others fail: it runs its own code there.
    forces_backend = getattr(sys.modules.get(original_class(block).__module__), "_should_force_math_sdpa", None)
    return recognises_attention(block.attn1) and not (forces_backend and forces_backend())


def recognises_attention(attention: Any) -> bool:
    """Whether this is diffusers' `Attention` without its options: plain queries, keys, values and output."""
    options = (
        "group_norm",
        "spatial_norm",
        "norm_cross",
        "norm_q",
        "norm_k",
        "added_kv_proj_dim",
        "residual_connection",
    )
    return (
        all(hasattr(attention, part) for part in ("to_q", "to_k", "to_v", "to_out", "heads", "processor"))
        # The second one is the same, unless the head passes it a cache (Isaac-GR00T, pull request 736).
        and type(attention.processor).__name__ in ("AttnProcessor2_0", "CachedCrossAttnProcessor")
        and not any(getattr(attention, option, None) for option in options)
        and getattr(attention, "rescale_output_factor", 1.0) == 1.0
    )


def project(attention: Any, tokens: Tensor, mask: Tensor | None = None) -> KeysValues:
    """Keys and values of (B, L, E) tokens."""
    keys, values = (split_heads(linear(tokens), attention.heads) for linear in (attention.to_k, attention.to_v))
    return KeysValues(keys, values, None if mask is None else mask[:, None, None])
