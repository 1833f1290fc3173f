"""A mixture of two transformers with the parts and names of Fast-WAM's: actions look at a video's cache, and read a text."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, HEAD, LAYERS = 16, 2, 8, 2


class Attention(nn.Module):
    """Of heads of its own size, with norms of queries and keys over all heads together."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.q, self.k, self.v = (nn.Linear(width, HEADS * HEAD) for _ in range(3))
        self.o = nn.Linear(HEADS * HEAD, width)
        self.norm_q, self.norm_k = nn.RMSNorm(HEADS * HEAD), nn.RMSNorm(HEADS * HEAD)

    def project(self, queries: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.norm_q(self.q(queries)), self.norm_k(self.k(others)), self.v(others)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        heads = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (queries, keys, values))
        return self.o(functional.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2).flatten(2))


class DiTBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.self_attn, self.cross_attn = Attention(width), Attention(width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.norm3 = nn.LayerNorm(width)
        self.ffn = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.modulation = nn.Parameter(torch.randn(1, 6, width) / width**0.5)


class ActionDiT(nn.Module):
    def __init__(self, action_dim: int, text_dim: int) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.action_encoder, self.head = nn.Linear(action_dim, WIDTH), nn.Linear(WIDTH, action_dim)
        self.text_embedding, self.time_projection = nn.Linear(text_dim, WIDTH), nn.Linear(1, 6 * WIDTH)
        self.blocks = nn.ModuleList(DiTBlock(WIDTH) for _ in range(LAYERS))

    def pre_dit(
        self, action_tokens: Tensor, timestep: Tensor, context: Tensor, context_mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        rows, length, _ = action_tokens.shape
        if context_mask is None:
            context_mask = torch.ones(context.shape[:2], dtype=torch.bool)
        angles = torch.arange(length)[:, None, None] / 10.0 ** torch.linspace(0, 2, HEAD // 2, dtype=torch.float64)
        return {
            "tokens": self.action_encoder(action_tokens),
            "freqs": torch.polar(torch.ones_like(angles), angles),
            "t_mod": self.time_projection((timestep / 1000).expand(rows)[:, None]).unflatten(1, (6, WIDTH)),
            "context": self.text_embedding(context),
            "context_mask": context_mask[:, None].expand(-1, length, -1),
        }

    def post_dit(self, tokens: Tensor, pre_state: dict[str, Any]) -> Tensor:
        return self.head(tokens)


class VideoExpert(nn.Module):
    """Only as much of it as a cache needs."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, 2 * HEADS * HEAD) for _ in range(LAYERS))


class MoT(nn.Module):
    def __init__(self, action: ActionDiT) -> None:
        super().__init__()
        self.mixtures = nn.ModuleDict({"video": VideoExpert(), "action": action})

    def prefill_video_cache(self, video_tokens: Tensor) -> list[dict[str, Tensor]]:
        blocks = self.mixtures["video"].blocks
        return [dict(zip(("k", "v"), block(video_tokens).chunk(2, -1), strict=True)) for block in blocks]

    def forward_action_with_video_cache(
        self, tokens: Tensor, state: dict[str, Any], cache: list[dict[str, Tensor]], mask: Tensor
    ) -> Tensor:
        for block, video in zip(self.mixtures["action"].blocks, cache, strict=True):
            modulation = (block.modulation + state["t_mod"]).chunk(6, dim=1)
            shift, scale, gate, shift_inside, scale_inside, gate_inside = modulation
            look, read = block.self_attn, block.cross_attn
            normed = block.norm1(tokens) * (1 + scale) + shift
            queries, keys, values = look.project(normed, normed)
            queries, keys = (rotate(part, state["freqs"]) for part in (queries, keys))
            keys, values = torch.cat((video["k"], keys), dim=1), torch.cat((video["v"], values), dim=1)
            tokens = tokens + gate * look.attend(queries, keys, values, mask)
            queries, keys, values = read.project(block.norm3(tokens), state["context"])
            tokens = tokens + read.attend(queries, keys, values, state["context_mask"][:, None])
            tokens = tokens + gate_inside * block.ffn(block.norm2(tokens) * (1 + scale_inside) + shift_inside)
        return tokens


def rotate(states: Tensor, freqs: Tensor) -> Tensor:
    pairs = torch.view_as_complex(states.double().unflatten(-1, (HEADS, -1, 2)))
    return torch.view_as_real(pairs * freqs).flatten(2).to(states.dtype)
