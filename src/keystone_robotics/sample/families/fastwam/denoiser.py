"""Fast-WAM's action expert on a video that K candidates share: exact, and without work done twice.

LeRobot's copy and the project's own code are known here by their parts alone. In each layer, an action token looks at the
video expert's cached keys and values and at the tokens of its own candidate, then at the text. As the authors wrote it, every
candidate brings its own copy of cache and text, the text is embedded and projected in every step, and so is the time. Here:

- the cache stays as it lies, without the tokens that no action looks at; what candidates see of it and of themselves is merged
  by log-sum-exp (see `attention.attend_to_both`);
- the text is embedded and projected to keys and values once a round, without its padding, and the candidates are queries of one
  row (see `cross_attention.cross_attend`);
- what depends on the time alone is computed once a round for all steps, what depends on the position once a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from keystone_robotics.sample.kit.attention import Context, Kept, attend_to_both, fold, own_bias, unfold
from keystone_robotics.sample.kit.bypass import Bypass
from keystone_robotics.sample.kit.cross_attention import KeysValues, compact, cross_attend, split_heads
from keystone_robotics.sample.kit.modulation import is_plain, modulate
from keystone_robotics.sample.proxies import is_replaced, original_class

#: Of the mixture of both experts.
BYPASS = Bypass(
    called=frozenset(
        {
            "action_encoder", "text_embedding", "time_embedding", "time_projection", "q", "k", "v", "o", "norm_q",
            "norm_k", "ffn", "head",
        }
    ),
    apart=frozenset({"video"}),
    methods=frozenset(
        {
            "forward", "forward_action_with_video_cache", "pre_dit", "post_dit", "project_self_attention",
            "project_self_attention_output", "apply_cross_attention", "apply_norm1", "apply_norm2", "apply_norm3",
        }
    ),
)  # fmt: skip


class Layer(NamedTuple):
    """One block of the expert, with the video and the text that it looks at."""

    block: Any
    video: Context
    text: KeysValues


class Shared(NamedTuple):
    """What the steps of a round have in common.

    Attributes:
        expert: the action expert.
        layers: of the expert.
        modulations: (steps, layers, 6, E): shift, scale and gate of attention, then of the feed-forward network.
        turns: (S, 1, D / 2) complex, the rotary positions of a candidate's tokens.
        bias: (S, S) among a candidate's tokens; None if each sees all.
    """

    expert: Any
    layers: list[Layer]
    modulations: Tensor
    turns: Tensor
    bias: Tensor | None


def prepare(model: Any, given: Mapping[str, Any], times: Tensor, k: int) -> Shared:
    """Once in a round.

    Args:
        model: one that `recognises` knows.
        given: what one candidate's step is called with: ``context`` (1, L, C) and ``context_mask`` (1, L) of the text,
            ``video_kv_cache`` with ``k`` and ``v`` (1, P, H * D) of each layer, ``attention_mask`` (P + S, P + S) and
            ``video_seq_len`` P.
        times: (steps,) the time of every step, as the network takes it.
        k: candidates.
    """
    expert, blocks, length = model.action_expert, blocks_of(model.mot), given["video_seq_len"]
    from_actions = given["attention_mask"][length:]
    video, own = from_actions[:, :length], from_actions[:, length:]
    alike = bool((video == video[:1]).all())  # as they are in all that was published: one row speaks for all queries
    kinds = [_kind(block, layer["v"]) for block, layer in zip(blocks, given["video_kv_cache"], strict=True)]
    kept = Kept.of((video[:1] if alike else video.repeat(k, 1))[None], kinds[0])

    tokens, mask = compact(given["context"], given["context_mask"])
    text = expert.text_embedding(tokens.to(expert.action_encoder.weight.dtype))
    # The expert's own code embeds the times, as many as there are, beside actions that do not matter and a text of no words.
    nothing = tokens.new_zeros(len(times), 0, tokens.shape[-1])
    actions = times.new_zeros(len(times), len(own), expert.action_dim)
    embedded = expert.pre_dit(action_tokens=actions, timestep=times, context=nothing)
    modulations = embedded["t_mod"][:, None] + torch.cat([block.modulation for block in blocks]).to(embedded["t_mod"])
    modulations[:, :, 1::3] += 1  # the two scales

    layers = []
    for block, cached, kind in zip(blocks, given["video_kv_cache"], kinds, strict=True):
        keys, values = (split_heads(cached[name].to(kind), block.num_heads) for name in ("k", "v"))
        layers.append(Layer(block, kept.context(keys, values), _project(block, text, mask)))
    turns = embedded["freqs"].to(torch.complex64)
    return Shared(expert, layers, modulations, turns, own_bias(own, 1, kinds[0]))


def denoise(shared: Shared, modulations: Tensor, actions: Tensor) -> Tensor:
    """The velocity (K, S, A) of the actions (K, S, A) of all candidates.

    Args:
        shared: by the steps of a round.
        modulations: (layers, 6, E) of this step.
        actions: of all candidates.
    """
    expert = shared.expert
    hidden = expert.action_encoder(actions.to(expert.action_encoder.weight.dtype))
    for layer, modulation in zip(shared.layers, modulations, strict=True):
        block = layer.block
        shift, scale, gate, shift_inside, scale_inside, gate_inside = modulation
        seen = _look(layer, modulate(block.norm1, hidden, scale, shift), shared)
        hidden = hidden + gate * _output(block.self_attn, seen)
        read = block.cross_attn
        queries = read.norm_q(read.q(modulate(block.norm3, hidden, block.norm3.weight, block.norm3.bias)))
        hidden = hidden + _output(read, cross_attend(queries.to(layer.text.keys.dtype), layer.text))
        hidden = hidden + gate_inside * block.ffn(modulate(block.norm2, hidden, scale_inside, shift_inside))
    velocity: Tensor = expert.head(hidden)
    return velocity


def blocks_of(mot: Any) -> Sequence[Any]:
    """The blocks of the action expert, which LeRobot's copy keeps layer by layer together with those of the video expert."""
    if hasattr(mot, "layers"):
        return [layer.blocks["action"] for layer in mot.layers]
    return list(mot.mixtures["action"].blocks)


def recognises(model: Any) -> bool:
    """Whether `denoise` computes what this model does. Another one runs as it is.

    Whether it is in training mode does not matter: sampling, it is put into evaluation mode by its authors.
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


def _kind(block: Any, values: Tensor) -> torch.dtype:
    """In what to compute attention: LeRobot's copy does it in float32, unless told otherwise."""
    return torch.float32 if getattr(block, "fp32_attention", False) else values.dtype


def _project(block: Any, text: Tensor, mask: Tensor | None) -> KeysValues:
    """What a block reads of the text (1, L, E)."""
    read = block.cross_attn
    keys, values = read.norm_k(read.k(text)), read.v(text)
    kind = _kind(block, values)
    keys, values = (split_heads(part.to(kind), read.num_heads) for part in (keys, values))
    return KeysValues(keys, values, None if mask is None else mask[:, None, None])


def _look(layer: Layer, normed: Tensor, shared: Shared) -> Tensor:
    """Attention of candidates (K, S, E) to the video and to themselves: (K, S, H * D)."""
    attention, video = layer.block.self_attn, layer.video
    heads, kind = layer.block.num_heads, video.keys.dtype

    def by_heads(projected: Tensor) -> Tensor:  # (1, K, S, H, D)
        return projected.view(1, *projected.shape[:2], heads, -1)

    queries = turn(by_heads(attention.norm_q(attention.q(normed))), shared.turns).to(kind)
    keys = turn(by_heads(attention.norm_k(attention.k(normed))), shared.turns).to(kind)
    values = by_heads(attention.v(normed)).to(kind)
    seen = attend_to_both(fold(queries, heads), video, keys, values, queries.shape[-1] ** -0.5, shared.bias)
    return unfold(seen, normed.shape[1]).view(*normed.shape[:2], -1)


def _output(attention: Any, seen: Tensor) -> Tensor:
    projected: Tensor = attention.o(seen.to(attention.o.weight.dtype))
    return projected


def turn(states: Tensor, turns: Tensor) -> Tensor:
    """Rotary positions: each pair of neighbours in a head is a complex number, to be turned.

    Args:
        states: (..., S, H, D).
        turns: (S, 1, D / 2) complex numbers of length 1.

    >>> turn(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1j]]]))
    tensor([[[0., 1.]]])
    """
    pairs = torch.view_as_complex(states.float().view(*states.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2).to(states.dtype)
