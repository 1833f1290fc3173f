"""Small parts for the models of this folder, which have other projects' seams and nothing else of theirs."""

from collections import UserDict
from typing import Any

import torch
from torch import Tensor, nn


class Fields(UserDict):
    """A dict whose entries are attributes too, made with ``Fields(data={...})``, as transformers' BatchFeature is."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data)

    def __getattr__(self, name: str) -> Any:
        if name == "data" or name not in self.data:
            raise AttributeError(name)
        return self.data[name]


class Transformer(nn.Module):
    """Tokens (B, S, E) that look at a context (B, L, C) and at each other, at a time (B,)."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.time = nn.Embedding(1000, width)
        self.keys, self.values = nn.Linear(context, width), nn.Linear(context, width)
        self.out = nn.Linear(2 * width, width)

    def attend(self, tokens: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        scores = tokens @ self.keys(context).mT
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -torch.inf)
        return scores.softmax(-1) @ self.values(context)

    def forward(self, tokens: Tensor, context: Tensor, times: Tensor, mask: Tensor | None = None) -> Tensor:
        tokens = tokens + self.time(times.long())[:, None]
        seen = self.attend(tokens, context, mask)
        return self.out(torch.cat([seen, tokens.tanh().mean(1, keepdim=True).expand_as(tokens)], -1)).tanh() + tokens


class PerRobot(nn.Module):
    """A linear layer with weights for each robot; (B, S, I) and robots (B,) to (B, S, O)."""

    def __init__(self, robots: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(robots, inputs, outputs) / inputs**0.5)

    def forward(self, values: Tensor, robot: Tensor) -> Tensor:
        return torch.bmm(values, self.weights[robot])


class ActionEncoder(nn.Module):
    """Actions (B, T, D) at a time (B,), of a robot if there are several, to tokens (B, T, E)."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.time = layer, nn.Embedding(1000, width)

    def forward(self, actions: Tensor, times: Tensor, *robot: Tensor) -> Tensor:
        return self.layer(actions, *robot) + self.time(times)[:, None]
