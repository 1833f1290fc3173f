"""The seams of RDT-1B and H-RDT: blocks that attend to images and language, in two layouts of keys and values."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, HORIZON, DIMS, REAL, WORDS, IMAGES, DEPTH = 16, 4, 6, 8, 5, 5, 7, 4


class Mixing(nn.Module):
    """In the place of self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh().mean(1, keepdim=True).expand_as(x)


class CrossAttention(nn.Module):
    """RDT's: keys before values, each by heads."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = HEADS, WIDTH // HEADS
        self.q, self.kv, self.proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.q_norm, self.k_norm = nn.RMSNorm(self.head_dim), nn.RMSNorm(self.head_dim)

    def forward(self, x: Tensor, c: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = self.kv(c).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mask = None if mask is None else mask[:, None, None]
        out = functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, attn_mask=mask)
        return self.proj(out.transpose(1, 2).flatten(2))


class GroupedCrossAttention(nn.Module):
    """H-RDT's: keys and values interleaved, one head of them for two of queries."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_size = HEADS, HEADS // 2, WIDTH // HEADS
        self.wq, self.wkv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.norm_q, self.norm_k = nn.RMSNorm(self.head_size), nn.RMSNorm(self.head_size)

    def forward(self, x: Tensor, c: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.norm_q(self.wq(x).unflatten(-1, (HEADS, -1))).transpose(1, 2)
        k, v = self.wkv(c).unflatten(-1, (self.n_kv_heads, self.head_size, 2)).unbind(-1)
        k, v = (one.repeat_interleave(2, dim=2).transpose(1, 2) for one in (self.norm_k(k), v))
        mask = None if mask is None else mask[:, None, None]
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(out.transpose(1, 2).flatten(2))


class Time(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(2, WIDTH)

    def forward(self, t: Tensor) -> Tensor:
        t = t.float()
        return self.mlp(torch.stack([t.sin(), (t / 50).cos()], 1)).tanh()


class RDTBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.RMSNorm(WIDTH) for _ in range(3))
        self.attn, self.cross_attn, self.ffn = Mixing(), CrossAttention(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, c: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x))
        x = x + self.cross_attn(self.norm2(x), c, mask)
        return x + self.ffn(self.norm3(x))


class RDT(nn.Module):
    """Four tokens before the actions: time, frequency, state."""

    def __init__(self) -> None:
        super().__init__()
        self.horizon, self.t_embedder, self.freq_embedder = HORIZON, Time(), Time()
        self.blocks, self.final_layer = nn.ModuleList(RDTBlock() for _ in range(DEPTH)), nn.Linear(WIDTH, DIMS)
        self.x_pos_embed = nn.Parameter(torch.randn(1, HORIZON + 3, WIDTH))
        self.lang_cond_pos_embed = nn.Parameter(torch.randn(1, 2 * WORDS, WIDTH))
        self.img_cond_pos_embed = nn.Parameter(torch.randn(1, IMAGES, WIDTH))

    def forward(
        self, x: Tensor, freq: Tensor, t: Tensor, lang_c: Tensor, img_c: Tensor, lang_mask: Any = None
    ) -> Tensor:
        time, freq = self.t_embedder(t)[:, None].expand(len(x), -1, -1), self.freq_embedder(freq)[:, None]
        x = torch.cat([time, freq, x], 1) + self.x_pos_embed
        conditions = (
            (lang_c + self.lang_cond_pos_embed[:, : lang_c.shape[1]], lang_mask),
            (img_c + self.img_cond_pos_embed, None),
        )
        for index, block in enumerate(self.blocks):
            x = block(x, *conditions[index % 2])
        return self.final_layer(x)[:, -self.horizon :]


class Scheduler:
    """Of second order: it keeps its last output, until the steps are set again."""

    config = SimpleNamespace(num_train_timesteps=20, algorithm_type="dpmsolver++")

    def set_timesteps(self, steps: int) -> None:
        self.timesteps = torch.linspace(19, 0, steps + 1).round().long()[:-1]
        self.last: Tensor | None = None

    def step(self, output: Tensor, time: Tensor, sample: Tensor) -> SimpleNamespace:
        output, self.last = (output if self.last is None else 1.5 * output - 0.5 * self.last), output
        return SimpleNamespace(prev_sample=sample + (output - sample) / len(self.timesteps))


class RDTRunner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.noise_scheduler_sample = RDT(), Scheduler()
        self.num_inference_timesteps, self.pred_horizon, self.action_dim = 4, HORIZON, DIMS
        self.lang_adaptor, self.img_adaptor = nn.Linear(3, WIDTH), nn.Linear(2, WIDTH)
        self.state_adaptor = nn.Linear(2 * DIMS, WIDTH)

    def adapt_conditions(self, lang_tokens: Tensor, img_tokens: Tensor, state_tokens: Tensor) -> tuple[Tensor, ...]:
        return self.lang_adaptor(lang_tokens), self.img_adaptor(img_tokens), self.state_adaptor(state_tokens)

    def conditional_sample(
        self, lang_cond: Tensor, lang_attn_mask: Tensor, img_cond: Tensor, state_traj: Tensor, action_mask: Tensor,
        ctrl_freqs: Tensor,
    ) -> Tensor:  # fmt: skip
        actions = torch.randn(size=(len(state_traj), self.pred_horizon, self.action_dim))
        mask = action_mask.expand(-1, self.pred_horizon, -1)
        self.noise_scheduler_sample.set_timesteps(self.num_inference_timesteps)
        for t in self.noise_scheduler_sample.timesteps:
            tokens = torch.cat([state_traj, self.state_adaptor(torch.cat([actions, mask], 2))], 1)
            out = self.model(tokens, ctrl_freqs, t.unsqueeze(-1), lang_cond, img_cond, lang_mask=lang_attn_mask)
            actions = self.noise_scheduler_sample.step(out, t, actions).prev_sample
        return actions * mask

    def predict_action(
        self, lang_tokens: Tensor, lang_attn_mask: Tensor, img_tokens: Tensor, state_tokens: Tensor, action_mask: Tensor,
        ctrl_freqs: Tensor,
    ) -> Tensor:  # fmt: skip
        state_tokens = torch.cat([state_tokens, action_mask], dim=2)
        language, images, state = self.adapt_conditions(lang_tokens, img_tokens, state_tokens)
        return self.conditional_sample(language, lang_attn_mask, images, state, action_mask, ctrl_freqs)


class HRDTBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        (
            self.attn_norm,
            self.img_cross_norm,
            self.img_cond_norm,
            self.lang_cross_norm,
            self.lang_cond_norm,
            self.ffn_norm,
        ) = (nn.LayerNorm(WIDTH) for _ in range(6))
        self.attn, self.ffn = Mixing(), nn.Linear(WIDTH, WIDTH)
        self.img_cross_attn, self.lang_cross_attn = GroupedCrossAttention(), GroupedCrossAttention()
        self.adaLN_modulation = nn.Linear(WIDTH, 9 * WIDTH)

    def forward(self, x: Tensor, t: Tensor, contexts: dict[str, Any]) -> Tensor:
        a, b, c, d, e, f, g, h, i = self.adaLN_modulation(t)[:, None].chunk(9, 2)
        x = x + c * self.attn(self.attn_norm(x) * (1 + b) + a)
        x = x + f * self.img_cross_attn(self.img_cross_norm(x) * (1 + e) + d, self.img_cond_norm(contexts["img_c"]))
        if contexts["lang_c"] is not None:
            words = self.lang_cond_norm(contexts["lang_c"])
            x = x + self.lang_cross_attn(self.lang_cross_norm(x), words, contexts["lang_attn_mask"])
        return x + i * self.ffn(self.ffn_norm(x) * (1 + h) + g)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ffn, self.modulation = nn.Linear(WIDTH, DIMS), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.ffn(x + self.modulation(t)[:, None])


class HRDT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.horizon, self.t_embedder, self.action_decoder = HORIZON, Time(), Decoder()
        self.blocks = nn.ModuleList(HRDTBlock() for _ in range(DEPTH))
        self.x_pos_emb = nn.Parameter(torch.randn(1, HORIZON + 1, WIDTH))
        self.img_pos_emb = nn.Parameter(torch.randn(1, 2 * IMAGES, WIDTH))
        self.lang_pos_emb = nn.Parameter(torch.randn(1, 2 * WORDS, WIDTH))

    def forward(
        self, x: Tensor, t: Tensor, img_c: Any = None, lang_c: Any = None, lang_attn_mask: Any = None
    ) -> Tensor:
        time = self.t_embedder(t).expand(len(x), -1)
        img_c = img_c + self.img_pos_emb[:, : img_c.shape[1]]
        lang_c = None if lang_c is None else lang_c + self.lang_pos_emb[:, : lang_c.shape[1]]
        x = x + self.x_pos_emb
        for block in self.blocks:
            x = block(x, time, {"img_c": img_c, "lang_c": lang_c, "lang_attn_mask": lang_attn_mask})
        return self.action_decoder(x, time)[:, -self.horizon :]


class ActionEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state, self.action = nn.Linear(DIMS, WIDTH), nn.Linear(DIMS, WIDTH)

    def encode_state(self, state_tokens: Tensor) -> Tensor:
        return self.state(state_tokens)

    def encode_action(self, action_tokens: Tensor) -> Tensor:
        return self.action(action_tokens)


class HRDTRunner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.action_encoder = HRDT(), ActionEncoder()
        self.img_adapter, self.lang_adapter = nn.Linear(2, WIDTH), nn.Linear(3, WIDTH)
        self.num_inference_timesteps, self.pred_horizon, self.action_dim = 4, HORIZON, DIMS

    @torch.no_grad()
    def predict_action(
        self, state_tokens: Any = None, image_tokens: Any = None, lang_tokens: Any = None, lang_attn_mask: Any = None
    ) -> Tensor:
        images = self.img_adapter(image_tokens)
        words = None if lang_tokens is None else self.lang_adapter(lang_tokens)
        state, time = self.action_encoder.encode_state(state_tokens), torch.tensor([0.0])
        actions = torch.randn((len(images), self.pred_horizon, self.action_dim))
        step = 1.0 / self.num_inference_timesteps
        for _ in range(self.num_inference_timesteps):
            tokens = torch.cat([state, self.action_encoder.encode_action(actions)], 1)
            actions = (
                self.model(tokens, time, img_c=images, lang_c=words, lang_attn_mask=lang_attn_mask) * step + actions
            )
            time = time + step
        return actions


def predict(runner: Any, rows: int, language: bool = True) -> Tensor:
    """Rows differ in how many words are visible; nobody sees the last."""
    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, WORDS, 3), (rows, IMAGES, 2), (rows, 1, DIMS)
    words, images, state = (torch.randn(shape, generator=generator) for shape in shapes)
    visible = torch.arange(WORDS) < 3 + torch.arange(rows)[:, None] % 2
    if isinstance(runner, HRDTRunner):
        return runner.predict_action(
            state, images, **({"lang_tokens": words, "lang_attn_mask": visible} if language else {})
        )
    mask = (torch.arange(DIMS) < REAL).float().expand(rows, 1, -1)
    return runner.predict_action(words, visible, images, state, mask, torch.arange(rows) + 10)
