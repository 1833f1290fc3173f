"""The seam of X-VLA: context and actions in one attention, and an action space that finishes what the network predicts."""

import torch
from torch import Tensor, nn

STEPS, DIMS, WIDTH, TOKENS, DOMAINS = 10, 20, 16, 7, 3


class TwoArms(nn.Module):
    """Position, rotation and gripper of two arms; the gripper is a logit until it is finished, in place."""

    dim_action, gripper_idx = DIMS, (9, 19)

    def preprocess(self, proprio: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        proprio, action = proprio.clone(), action.clone()
        proprio[..., self.gripper_idx] = 0.0
        action[..., self.gripper_idx] = 0.0
        return proprio, action

    def postprocess(self, action: Tensor) -> Tensor:
        action[..., self.gripper_idx] = torch.sigmoid(action[..., self.gripper_idx])
        return action


class Auto(nn.Module):
    """As many dimensions as the robot has; is told the proprioception, and writes into it."""

    dim_action, real_dim = DIMS, 8

    def preprocess(self, proprio: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        proprio[..., 0] = 0.0
        return proprio, action

    def postprocess(self, action: Tensor, proprio: Tensor) -> Tensor:
        action = action.clone()
        action[..., 1] += proprio[:, None, 1]
        return action[..., : self.real_dim]


class Mixer(nn.Module):
    """Attends from everything to everything, so that what is seen of the context depends on the actions."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts = nn.Embedding(DOMAINS, WIDTH)
        self.actions, self.state = nn.Linear(DIMS, WIDTH), nn.Linear(DIMS, WIDTH)
        self.out = nn.Linear(WIDTH, DIMS)

    def forward(
        self,
        domain_id: Tensor,
        vlm_features: Tensor,
        aux_visual_inputs: Tensor,
        action_with_noise: Tensor,
        proprio: Tensor,
        t: Tensor,
    ) -> Tensor:
        actions = self.actions(action_with_noise) + self.state(proprio)[:, None] + t[:, None, None]
        parts = (actions, vlm_features, aux_visual_inputs, self.prompts(domain_id)[:, None])
        tokens = torch.cat(parts, 1)
        for _ in range(2):
            tokens = tokens + (tokens @ tokens.mT / WIDTH).softmax(-1) @ tokens
        return self.out(tokens[:, : actions.shape[1]].tanh()) * 2


class XVLALike(nn.Module):
    def __init__(self, action_space: nn.Module) -> None:
        super().__init__()
        self.num_actions, self.action_space = STEPS, action_space
        self.vlm, self.transformer = nn.Embedding(50, WIDTH), Mixer()

    def forward_vlm(self, input_ids: Tensor, pixel_values: Tensor, image_mask: Tensor) -> dict[str, Tensor]:
        views = pixel_values.mean((-1, -2))[..., :1] * image_mask[..., None]
        return {"vlm_features": self.vlm(input_ids), "aux_visual_inputs": views.expand(-1, -1, WIDTH)}

    @torch.no_grad()
    def generate_actions(
        self,
        input_ids: Tensor,
        image_input: Tensor,
        image_mask: Tensor,
        domain_id: Tensor,
        proprio: Tensor,
        steps: int = 10,
    ) -> Tensor:
        self.eval()
        context = self.forward_vlm(input_ids, image_input, image_mask)
        noise = torch.randn(len(input_ids), self.num_actions, DIMS, device=proprio.device, dtype=proprio.dtype)
        action = torch.zeros_like(noise)
        for step in range(steps, 0, -1):
            time = torch.full((len(noise),), step / steps)
            mixed = noise * time[:, None, None] + action * (1 - time)[:, None, None]
            state, mixed = self.action_space.preprocess(proprio, mixed)
            action = self.transformer(domain_id=domain_id, action_with_noise=mixed, proprio=state, t=time, **context)
        more = {} if isinstance(self.action_space, TwoArms) else {"proprio": proprio}
        return self.action_space.postprocess(action, **more)


def predict(model: XVLALike, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return model.generate_actions(
        input_ids=torch.randint(50, (rows, TOKENS), generator=generator),
        image_input=torch.randn(rows, 2, 3, 4, 4, generator=generator),
        image_mask=torch.tensor([[True, False], [True, True], [True, True]])[:rows],
        domain_id=torch.arange(rows) % DOMAINS,
        proprio=torch.randn(rows, DIMS, generator=generator),
        steps=4,
    )
