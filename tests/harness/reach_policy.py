"""A policy for the plane that mostly goes to the goal and sometimes aside, decided by its noise; split as KeyStone likes it."""

import torch

STEPS, REAL, PADDED = 8, 2, 4
ASIDE = 0.5  # of a standard normal number, above it the chunk leads aside: 31 %


class ReachPolicy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoded = 0

    def encode(self, states):
        self.encoded += 1
        direction = torch.tensor([1.0, 0.0]) - states
        return direction / direction.norm(dim=1, keepdim=True).clamp_min(1e-6)

    def sample(self, context, noise):
        """Chunks (B, 8, 4) of which two dimensions are real; the others are noise, as padding is in real policies."""
        aside = noise[:, 0, 0] > ASIDE
        angle = torch.where(aside, 1.6 * torch.sign(noise[:, 0, 1]), torch.zeros(len(noise)))
        cos, sin = torch.cos(angle), torch.sin(angle)
        turned = torch.stack([cos * context[:, 0] - sin * context[:, 1], sin * context[:, 0] + cos * context[:, 1]], 1)
        return torch.cat([turned[:, None] + 0.05 * noise[..., :REAL], 3.0 * noise[..., REAL:]], -1)

    def act(self, states):
        return self.sample(self.encode(states), torch.randn(len(states), STEPS, PADDED))
