"""Fast-WAM's action expert for K candidates on a shared video cache.

LeRobot's copy and the project's own code are recognised by their parts. In each layer, action tokens attend to the video
expert's cached keys and values and to the tokens of their own candidate, then to the text. The original code copies cache and
text for every candidate, and embeds and projects text and time in every step. Here:

- the cache is not copied, and tokens that no action attends to are dropped; attention to it and to a candidate's own tokens is
  merged by log-sum-exp (see `attention.attend_to_both`);
- the text is embedded and projected to keys and values once per round, without padding, and candidates are queries of one row
  (see `cross_attention.cross_attend`);
- values that depend only on the time (for all steps) or on the position are computed once per round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from keystone_robotics.sample.kit.attention import Context, VisibleTokens, attend_to_both, fold, self_bias, unfold
from keystone_robotics.sample.kit.bypass import Bypass
from keystone_robotics.sample.kit.cross_attention import KeysValues, compact, cross_attend, split_heads
from keystone_robotics.sample.kit.modulation import is_plain, modulate
from keystone_robotics.sample.proxies import is_replaced, original_class

#: For the mixture of both experts.
BYPASS = Bypass(
    called_modules=frozenset(
        {
            "action_encoder", "text_embedding", "time_embedding", "time_projection", "q", "k", "v", "o", "norm_q",
            "norm_k", "ffn", "head",
        }
    ),
    unused_modules=frozenset({"video"}),
    methods=frozenset(
        {
            "forward", "forward_action_with_video_cache", "pre_dit", "post_dit", "project_self_attention",
            "project_self_attention_output", "apply_cross_attention", "apply_norm1", "apply_norm2", "apply_norm3",
        }
    ),
)  # fmt: skip


class Layer(NamedTuple):
    """One block of the expert, with the keys and values of video and text."""

    block: Any
    video: Context
    text: KeysValues


class Shared(NamedTuple):
    """Constant during a round.

    Attributes:
        expert: the action expert.
        layers: of the expert.
        modulations: (steps, layers, 6, E): shift, scale and gate of attention, then of the feed-forward network.
        rotations: (S, 1, D / 2) complex, the rotary positions of a candidate's tokens.
        bias: (S, S) between a candidate's tokens; None without a mask.
    """

    expert: Any
    layers: list[Layer]
    modulations: Tensor
    rotations: Tensor
    bias: Tensor | None


def prepare(model: Any, given: Mapping[str, Any], times: Tensor, k: int) -> Shared:
    """Called once per round.

    Args:
        model: a supported one, see `recognises`.
        given: arguments of one candidate's step: ``context`` (1, L, C) and ``context_mask`` (1, L) of the text,
            ``video_kv_cache`` with ``k`` and ``v`` (1, P, H * D) of each layer, ``attention_mask`` (P + S, P + S) and
            ``video_seq_len`` P.
        times: (steps,) the time of every step, as the network takes it.
        k: candidates.
    """
    expert, blocks, length = model.action_expert, blocks_of(model.mot), given["video_seq_len"]
    from_actions = given["attention_mask"][length:]
    video, own = from_actions[:, :length], from_actions[:, length:]
    same_rows = bool((video == video[:1]).all())  # True for all published models: one row is enough
    dtypes = [_attention_dtype(block, layer["v"]) for block, layer in zip(blocks, given["video_kv_cache"], strict=True)]
    visible = VisibleTokens.of((video[:1] if same_rows else video.repeat(k, 1))[None], dtypes[0])

    tokens, mask = compact(given["context"], given["context_mask"])
    text = expert.text_embedding(tokens.to(expert.action_encoder.weight.dtype))
    # The expert's own code embeds all times as one batch, with dummy actions and an empty text.
    empty = tokens.new_zeros(len(times), 0, tokens.shape[-1])
    actions = times.new_zeros(len(times), len(own), expert.action_dim)
    embedded = expert.pre_dit(action_tokens=actions, timestep=times, context=empty)
    modulations = embedded["t_mod"][:, None] + torch.cat([block.modulation for block in blocks]).to(embedded["t_mod"])
    modulations[:, :, 1::3] += 1  # the two scales

    layers = []
    for block, cached, dtype in zip(blocks, given["video_kv_cache"], dtypes, strict=True):
        keys, values = (split_heads(cached[name].to(dtype), block.num_heads) for name in ("k", "v"))
        layers.append(Layer(block, visible.context(keys, values), _project(block, text, mask)))
    rotations = embedded["freqs"].to(torch.complex64)
    return Shared(expert, layers, modulations, rotations, self_bias(own, 1, dtypes[0]))


def denoise(shared: Shared, modulations: Tensor, actions: Tensor) -> Tensor:
    """The velocity (K, S, A) of the actions (K, S, A) of all candidates.

    Args:
        shared: from `prepare`.
        modulations: (layers, 6, E) of this step.
        actions: of all candidates.
    """
    expert = shared.expert
    hidden = expert.action_encoder(actions.to(expert.action_encoder.weight.dtype))
    for layer, modulation in zip(shared.layers, modulations, strict=True):
        block = layer.block
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = modulation
        attended = _self_attention(layer, modulate(block.norm1, hidden, scale, shift), shared)
        hidden = hidden + gate * _project_output(block.self_attn, attended)
        cross = block.cross_attn
        queries = cross.norm_q(cross.q(modulate(block.norm3, hidden, block.norm3.weight, block.norm3.bias)))
        hidden = hidden + _project_output(cross, cross_attend(queries.to(layer.text.keys.dtype), layer.text))
        hidden = hidden + ffn_gate * block.ffn(modulate(block.norm2, hidden, ffn_scale, ffn_shift))
    velocity: Tensor = expert.head(hidden)
    return velocity


def blocks_of(mot: Any) -> Sequence[Any]:
    """The blocks of the action expert; LeRobot's copy stores them by layer, with those of the video expert."""
    if hasattr(mot, "layers"):
        return [layer.blocks["action"] for layer in mot.layers]
    return list(mot.mixtures["action"].blocks)


def recognises(model: Any) -> bool:
    """Whether `denoise` supports this model; others run their own code.

    Training mode does not matter: the model's own sampler switches to evaluation mode.
    """
    expert, mot = model.action_expert, model.mot
    names = tuple(original_class(part).__name__ for part in (expert, mot))
    if names != ("ActionDiT", "MoT") or is_replaced(model, "_predict_action_noise_with_cache"):
        return False
    return (
        _has(expert, "action_encoder", "text_embedding", "head", "pre_dit", "action_dim", "blocks")
        and dict(getattr(mot, "mixtures", {})).get("action") is expert
        and all(original_class(layer).__name__ == "MoTLayer" for layer in getattr(mot, "layers", ()))
        and all(_recognises_block(block) for block in blocks_of(mot))
    )


def _recognises_block(block: Any) -> bool:
    if original_class(block).__name__ not in ("DiTBlock", "FastWAMAttentionBlock"):
        return False
    if not _has(block, "self_attn", "cross_attn", "norm1", "norm2", "norm3", "ffn", "modulation", "num_heads"):
        return False
    return (
        _has(block.self_attn, "q", "k", "v", "o", "norm_q", "norm_k")
        and _has(block.cross_attn, "q", "k", "v", "o", "norm_q", "norm_k", "num_heads")
        and block.modulation.shape[:2] == (1, 6)
        and is_plain(block.norm1)
        and is_plain(block.norm2)
        and isinstance(block.norm3, nn.LayerNorm)
        and block.norm3.elementwise_affine
    )


def _has(part: Any, *names: str) -> bool:
    return all(hasattr(part, name) for name in names)


def _attention_dtype(block: Any, values: Tensor) -> torch.dtype:
    """The dtype of attention: float32 by default in LeRobot's copy."""
    return torch.float32 if getattr(block, "fp32_attention", False) else values.dtype


def _project(block: Any, text: Tensor, mask: Tensor | None) -> KeysValues:
    """Keys and values of the text (1, L, E) for a block's cross-attention."""
    cross = block.cross_attn
    keys, values = cross.norm_k(cross.k(text)), cross.v(text)
    dtype = _attention_dtype(block, values)
    keys, values = (split_heads(part.to(dtype), cross.num_heads) for part in (keys, values))
    return KeysValues(keys, values, None if mask is None else mask[:, None, None])


def _self_attention(layer: Layer, normed: Tensor, shared: Shared) -> Tensor:
    """Attention of candidates (K, S, E) to the video and to themselves: (K, S, H * D)."""
    attention, video = layer.block.self_attn, layer.video
    heads, dtype = layer.block.num_heads, video.keys.dtype

    def by_heads(projected: Tensor) -> Tensor:  # (1, K, S, H, D)
        return projected.view(1, *projected.shape[:2], heads, -1)

    queries = rotate(by_heads(attention.norm_q(attention.q(normed))), shared.rotations).to(dtype)
    keys = rotate(by_heads(attention.norm_k(attention.k(normed))), shared.rotations).to(dtype)
    values = by_heads(attention.v(normed)).to(dtype)
    attended = attend_to_both(fold(queries, heads), video, keys, values, queries.shape[-1] ** -0.5, shared.bias)
    return unfold(attended, normed.shape[1]).view(*normed.shape[:2], -1)


def _project_output(attention: Any, attended: Tensor) -> Tensor:
    projected: Tensor = attention.o(attended.to(attention.o.weight.dtype))
    return projected


def rotate(states: Tensor, rotations: Tensor) -> Tensor:
    """Rotary position embedding on adjacent pairs of every head, taken as complex numbers.

    Args:
        states: (..., S, H, D).
        rotations: (S, 1, D / 2) complex numbers of length 1.

    >>> rotate(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1j]]]))
    tensor([[[0., 1.]]])
    """
    pairs = torch.view_as_complex(states.float().view(*states.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(states.dtype)
