"""The seams of StarVLA: heads on the last layer or on every layer of a vision-language model, as now and as before."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from .networks import ActionEncoder, Transformer

WIDTH, TOKENS, HORIZON, DIMS, LAYERS, STEPS, BUCKETS = 16, 7, 8, 7, 2, 4, 1000


class Network(Transformer):
    """For one context."""

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, timestep: Tensor, encoder_attention_mask: Any = None
    ) -> Tensor:
        return super().forward(hidden_states, encoder_hidden_states, timestep, encoder_attention_mask)


class Block(Transformer):
    """One layer of `LayerNetwork`, which is given an embedding of the time."""

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, mask: Any = None) -> Tensor:
        return hidden_states + self.attend(hidden_states + temb[:, None], encoder_hidden_states, mask)


class OldLayerNetwork(nn.Module):
    """A context for each layer; its head goes through the layers itself."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.timestep_encoder = nn.Embedding(BUCKETS, width)
        self.transformer_blocks = nn.ModuleList(Block(width, context) for _ in range(LAYERS))

    def forward(self, hidden_states: Tensor) -> Tensor:
        raise AssertionError("the head does not call it")


class LayerNetwork(OldLayerNetwork):
    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: list[Tensor],
        timestep: Tensor,
        encoder_attention_mask: Any = None,
        return_pre_output: bool = False,
    ) -> Tensor:
        assert return_pre_output
        time = self.timestep_encoder(timestep)
        for block, context in zip(self.transformer_blocks, encoder_hidden_states, strict=True):
            hidden_states = block(hidden_states, context, time, encoder_attention_mask)
        return hidden_states


class Head(nn.Module):
    def __init__(self, network: type[nn.Module]) -> None:
        super().__init__()
        self.config = SimpleNamespace(add_pos_embed=True, action_horizon=HORIZON, action_dim=DIMS)
        self.action_dim, self.action_horizon = DIMS, HORIZON
        self.num_inference_timesteps, self.num_timestep_buckets = STEPS, BUCKETS
        self.state_encoder = nn.Linear(5, WIDTH)
        self.action_encoder = ActionEncoder(nn.Linear(DIMS, WIDTH), WIDTH)
        self.action_decoder = nn.Linear(WIDTH, DIMS)
        self.future_tokens, self.position_embedding = nn.Embedding(3, WIDTH), nn.Embedding(HORIZON, WIDTH)
        self.model = network(WIDTH, WIDTH)

    @torch.no_grad()
    def loop(self, first: Tensor, state: Tensor | None, see: Any) -> Tensor:
        rows = len(first)
        actions = torch.randn(size=(rows, HORIZON, DIMS), dtype=first.dtype, device=first.device)
        prefix = [] if state is None else [self.state_encoder(state)]
        prefix.append(self.future_tokens.weight.expand(rows, -1, -1))
        for step in range(self.num_inference_timesteps):
            times = torch.full((rows,), int(step / self.num_inference_timesteps * BUCKETS))
            tokens = self.action_encoder(actions, times) + self.position_embedding.weight[None]
            hidden = see(torch.cat([*prefix, tokens], 1), times)
            actions = actions + self.action_decoder(hidden)[:, -HORIZON:] / self.num_inference_timesteps
        return actions


class MaskedHead(Head):
    """As at StarVLA's newest commit."""

    def predict_action(self, vl_embs: Tensor, state: Any = None, encoder_attention_mask: Any = None) -> Tensor:
        see = lambda tokens, times: self.model(  # noqa: E731
            hidden_states=tokens, encoder_hidden_states=vl_embs, timestep=times,
            encoder_attention_mask=encoder_attention_mask,
        )  # fmt: skip
        return self.loop(vl_embs, state, see)


class OldHead(Head):
    def predict_action(self, vl_embs: Tensor, state: Any = None) -> Tensor:
        return self.loop(vl_embs, state, lambda tokens, times: self.model(tokens, vl_embs, times))


class LayerwiseHead(Head):
    def predict_action(
        self, vl_embs_list: list[Tensor], state: Any = None, encoder_attention_mask: Any = None
    ) -> Tensor:
        see = lambda tokens, times: self.model(  # noqa: E731
            tokens, vl_embs_list, times, encoder_attention_mask, return_pre_output=True
        )
        return self.loop(vl_embs_list[0], state, see)


class OldLayerwiseHead(Head):
    def predict_action(self, vl_embs_list: list[Tensor], state: Any = None) -> Tensor:
        def see(tokens: Tensor, times: Tensor) -> Tensor:
            time = self.model.timestep_encoder(times)
            for index, block in enumerate(self.model.transformer_blocks):
                tokens = block(hidden_states=tokens, encoder_hidden_states=vl_embs_list[index], temb=time)
            return tokens

        return self.loop(vl_embs_list[0], state, see)


class Framework(nn.Module):
    """Encodes, and calls its head by position, as StarVLA's frameworks do."""

    def __init__(self, head: Head, layers: bool = False, masked: bool = False, with_state: bool = True) -> None:
        super().__init__()
        self.vlm = nn.Linear(4, TOKENS * WIDTH)
        self.action_model = head
        self.layers, self.masked, self.with_state = layers, masked, with_state

    def encode(self, images: Tensor) -> list[Tensor]:
        first = self.vlm(images).unflatten(1, (TOKENS, WIDTH))
        return [first, 2 * first.tanh()]

    def predict_action(self, images: Tensor, states: Tensor) -> dict[str, Any]:
        hidden = self.encode(images)
        mask = {"encoder_attention_mask": torch.arange(TOKENS).expand(len(images), -1) < 5} if self.masked else {}
        actions = self.action_model.predict_action(
            hidden if self.layers else hidden[-1], states if self.with_state else None, **mask
        )
        return {"normalized_actions": actions.detach().cpu().numpy()}


def predict(framework: Framework, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    images, states = torch.randn(rows, 4, generator=generator), torch.randn(rows, 1, 5, generator=generator)
    return torch.from_numpy(framework.predict_action(images, states)["normalized_actions"])
