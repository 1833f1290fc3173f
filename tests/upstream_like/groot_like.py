"""The seams of Isaac-GR00T: heads like those of N1.5, N1.6 and N1.7, a model and a policy that hold them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .networks import ActionEncoder, Fields, PerRobot, Transformer

WIDTH, TOKENS, HORIZON, DIMS, ROBOTS = 16, 7, 16, 29, 3
STEPS, BUCKETS = 4, 1000


class Network(Transformer):
    """Takes what the heads' transformers take."""

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        timestep: Tensor,
        image_mask: Tensor | None = None,
        backbone_attention_mask: Tensor | None = None,
    ) -> Tensor:
        mask = None if image_mask is None else image_mask & backbone_attention_mask
        return super().forward(hidden_states, encoder_hidden_states, timestep, mask)


class Head(nn.Module):
    """What the three have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            action_horizon=HORIZON, action_dim=DIMS, add_pos_embed=True, use_alternate_vl_dit=True
        )
        self.action_dim, self.action_horizon = DIMS, HORIZON
        self.num_inference_timesteps, self.num_timestep_buckets = STEPS, BUCKETS
        self.vlln = nn.LayerNorm(WIDTH)
        self.state_encoder = PerRobot(ROBOTS, 5, WIDTH)
        self.action_encoder = ActionEncoder(PerRobot(ROBOTS, DIMS, WIDTH), WIDTH)
        self.action_decoder = PerRobot(ROBOTS, WIDTH, DIMS)
        self.position_embedding = nn.Embedding(HORIZON, WIDTH)
        self.model = Network(WIDTH, WIDTH)

    def process_backbone_output(self, backbone_output: Fields) -> Fields:
        backbone_output["backbone_features"] = 3 * self.vlln(backbone_output["backbone_features"]).tanh()
        return backbone_output

    def _encode_features(self, backbone_output: Fields, action_input: Fields) -> Fields:
        features = self.process_backbone_output(backbone_output).backbone_features
        state = self.state_encoder(action_input.state, action_input.embodiment_id)
        return Fields(data={"backbone_features": features, "state_features": state})

    def loop(self, actions: Tensor, prefix: Tensor, robot: Tensor, see: Any, strength: Any = 1.0) -> Tensor:
        for step in range(self.num_inference_timesteps):
            times = torch.full((len(actions),), int(step / self.num_inference_timesteps * BUCKETS))
            tokens = self.action_encoder(actions, times, robot) + self.position_embedding.weight[None]
            hidden = see(torch.cat((prefix, tokens), 1), times)
            actions = (
                actions + self.action_decoder(hidden, robot)[:, -HORIZON:] * strength / self.num_inference_timesteps
            )
        return actions

    def seer(self, features: Tensor, backbone_output: Fields) -> Any:
        return lambda tokens, times: self.model(
            hidden_states=tokens, encoder_hidden_states=features, timestep=times,
            image_mask=backbone_output.image_mask, backbone_attention_mask=backbone_output.backbone_attention_mask,
        )  # fmt: skip

    def draw(self, features: Tensor) -> Tensor:
        return torch.randn(size=(len(features), HORIZON, DIMS), dtype=features.dtype, device=features.device)


class Head16(Head):
    @torch.no_grad()
    def get_action_with_features(
        self, backbone_features: Tensor, state_features: Tensor, embodiment_id: Tensor, backbone_output: Fields
    ) -> Fields:
        actions = self.loop(
            self.draw(backbone_features), state_features, embodiment_id, self.seer(backbone_features, backbone_output)
        )
        fields = {"action_pred": actions, "backbone_features": backbone_features, "state_features": state_features}
        return Fields(data=fields)

    def get_action(self, backbone_output: Fields, action_input: Fields) -> Fields:
        features = self._encode_features(backbone_output, action_input)
        return self.get_action_with_features(
            backbone_features=features.backbone_features,
            state_features=features.state_features,
            embodiment_id=action_input.embodiment_id,
            backbone_output=backbone_output,
        )


class Head17(Head):
    @torch.no_grad()
    def get_action_with_features(
        self,
        backbone_features: Tensor,
        state_features: Tensor,
        embodiment_id: Tensor,
        backbone_output: Fields,
        action_input: Fields,
        options: dict[str, Any] | None = None,
    ) -> Fields:
        actions = self.draw(backbone_features)
        strength = torch.ones(HORIZON, 1)
        if "action" in action_input:
            overlap, frozen = options["rtc_overlap_steps"], options["rtc_frozen_steps"]
            end = options["action_horizon"]
            actions[:, :overlap] = action_input["action"][:, end - overlap : end]
            ramp = 1 - torch.exp(-options["rtc_ramp_rate"] * torch.linspace(0, 1, overlap - frozen + 2))
            strength[:frozen] = 0
            strength[frozen:overlap, 0] = (ramp / ramp[-1])[1:-1]
        see = self.seer(backbone_features, backbone_output)
        actions = self.loop(actions, state_features, embodiment_id, see, strength)
        fields = {"action_pred": actions, "backbone_features": backbone_features, "state_features": state_features}
        return Fields(data=fields)

    def get_action(self, backbone_output: Fields, action_input: Fields, options: Any = None) -> Fields:
        features = self._encode_features(backbone_output, action_input)
        return self.get_action_with_features(
            backbone_features=features.backbone_features,
            state_features=features.state_features,
            embodiment_id=action_input.embodiment_id,
            backbone_output=backbone_output,
            action_input=action_input,
            options=options,
        )


class Head15(Head):
    def __init__(self) -> None:
        super().__init__()
        self.future_tokens = nn.Embedding(3, WIDTH)

    @torch.no_grad()
    def get_action(self, backbone_output: Fields, action_input: Fields) -> Fields:
        encoded = self._encode_features(backbone_output, action_input)
        features = encoded.backbone_features
        future = self.future_tokens.weight.expand(len(features), -1, -1)
        actions = self.loop(
            self.draw(features), torch.cat((encoded.state_features, future), 1), action_input.embodiment_id,
            lambda tokens, times: self.model(
                hidden_states=tokens, encoder_hidden_states=features, timestep=times
            ),
        )  # fmt: skip
        return Fields(data={"action_pred": actions})


class Backbone(nn.Module):
    """In the place of a vision-language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, TOKENS * WIDTH)

    def forward(self, inputs: dict[str, Tensor]) -> Fields:
        features = self.embed(inputs["image"]).unflatten(1, (TOKENS, WIDTH))
        places = torch.arange(TOKENS).expand(len(features), -1)
        masks = {"image_mask": places < 4, "backbone_attention_mask": places < 6}
        return Fields(data={"backbone_features": features, **masks})


class Model(nn.Module):
    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.action_head = Backbone(), head

    def get_action(self, inputs: dict[str, Tensor], *options: Any) -> Fields:
        return self.action_head.get_action(self.backbone(inputs), Fields(data=dict(inputs)), *options)


def policy(model: Model) -> Any:
    """Like the Gr00tPolicy of N1.6 and N1.7, for a robot of 3 + 4 dimensions whose chunks are decoded for 8 steps."""
    known = {"arm": {"dim": np.array(3)}, "hand": {"dim": np.array(4)}, "unused": {"dim": np.array(5)}}
    return SimpleNamespace(
        model=model,
        embodiment_tag=SimpleNamespace(value="robot"),
        modality_configs={"action": SimpleNamespace(delta_indices=list(range(8)), modality_keys=["arm", "hand"])},
        processor=SimpleNamespace(
            state_action_processor=SimpleNamespace(norm_params={"robot": {"action": known}}),
        ),
    )


def policy_of_15(model: Model) -> Any:
    """Like the Gr00tPolicy of N1.5."""
    concat = SimpleNamespace(
        action_dims={"action.arm": 3, "action.hand": 4}, action_concat_order=["action.arm", "action.hand"]
    )
    return SimpleNamespace(
        model=model,
        modality_config={"action": SimpleNamespace(delta_indices=list(range(8)))},
        modality_transform=SimpleNamespace(transforms=[SimpleNamespace(), concat]),
    )


def inputs(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return {
        "image": torch.randn(rows, 4, generator=generator),
        "state": torch.randn(rows, 1, 5, generator=generator),
        "embodiment_id": torch.arange(rows) % ROBOTS,
    }


def predict(model: Model, rows: int) -> Tensor:
    return model.get_action(inputs(rows))["action_pred"]
