"""A compact flow-matching policy for states: small enough to train in a minute on one core, and to sample K wide at once."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from keystone_robotics.errors import KeystoneError
from keystone_study.policies import TYPE

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class FlowConfig:
    """Everything but the weights.

    Attributes:
        observation_dim: numbers in an observation.
        action_dim: numbers in an action.
        horizon: steps in a chunk.
        n_action_steps: how many of them are executed before the next round.
        relative: which dimensions of actions are positions relative to the robot's at the beginning of the chunk.
        width: of the hidden layers.
        blocks: residual ones.
        integration_steps: of Euler's method from noise to chunk.
    """

    observation_dim: int
    action_dim: int
    horizon: int = 16
    n_action_steps: int = 8
    relative: tuple[int, ...] = ()
    width: int = 192
    blocks: int = 3
    integration_steps: int = 10


class _Block(nn.Module):
    """A residual layer that the context scales and shifts (FiLM)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulate = nn.Linear(width, 2 * width)
        self.widen = nn.Linear(width, width)
        self.narrow = nn.Linear(width, width)

    def forward(self, hidden: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.modulate(condition).chunk(2, -1)
        narrow: Tensor = self.narrow(silu(self.widen(self.norm(hidden) * (1 + scale) + shift)))
        return hidden + narrow


class FlowPolicy(nn.Module):
    """Maps an observation and noise to a chunk, in the two steps that KeyStone needs of any policy.

    >>> policy = FlowPolicy(FlowConfig(observation_dim=39, action_dim=4))
    >>> observation = torch.zeros(2, 39)
    >>> context = policy.encode(observation)
    >>> policy.sample(context, torch.randn(2, 16, 4)).shape
    torch.Size([2, 16, 4])
    >>> policy(observation).shape                           # the same two steps
    torch.Size([2, 16, 4])
    """

    observation_mean: Tensor
    observation_std: Tensor
    action_mean: Tensor
    action_std: Tensor
    frequencies: Tensor

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.num_inference_steps = config.integration_steps
        width, flat = config.width, config.horizon * config.action_dim
        self.observe = nn.Sequential(nn.Linear(config.observation_dim, width), nn.SiLU(), nn.Linear(width, width))
        self.tell_time = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Linear(flat, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(config.blocks))
        self.leave = nn.Linear(width, flat)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)
        self.register_buffer("frequencies", torch.exp(torch.linspace(0.0, math.log(200.0), 16)), persistent=False)
        self.register_buffer("observation_mean", torch.zeros(config.observation_dim))
        self.register_buffer("observation_std", torch.ones(config.observation_dim))
        self.register_buffer("action_mean", torch.zeros(config.action_dim))
        self.register_buffer("action_std", torch.ones(config.action_dim))

    def forward(self, observation: Tensor) -> Tensor:
        """(B, O) observations to (B, T, D) chunks."""
        context = self.encode(observation)
        noise = torch.randn(len(observation), self.config.horizon, self.config.action_dim, device=observation.device)
        return self.sample(context, noise)

    def encode(self, observation: Tensor) -> Tensor:
        """(B, O) in the environment's units to a context (B, width)."""
        context: Tensor = self.observe((observation - self.observation_mean) / self.observation_std)
        return context

    def sample(self, context: Tensor, noise: Tensor) -> Tensor:
        """Follow the flow from standard normal noise (B, T, D) to chunks (B, T, D) in the units of the demonstrations."""
        steps = self.num_inference_steps
        state = noise.flatten(1)
        for step in range(steps):
            time = torch.full((1,), step / steps, device=noise.device, dtype=noise.dtype)
            state = state + self.velocity(state, time, context) / steps
        return state.reshape(noise.shape) * self.action_std + self.action_mean

    def velocity(self, state: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """(B, T*D) the direction of the flow at (B, T*D) and time (B,) or (1,), from 0 (noise) to 1 (chunk)."""
        angles = time[:, None] * self.frequencies
        condition = silu(context + self.tell_time(torch.cat([angles.sin(), angles.cos()], -1)))
        hidden = self.enter(state)
        for block in self.blocks:
            hidden = block(hidden, condition)
        velocity: Tensor = self.leave(hidden)
        return velocity

    def loss(self, observation: Tensor, chunk: Tensor, noise: Tensor, time: Tensor) -> Tensor:
        """How far the velocity is from a straight line: mean squared error on (B, T, D) chunks, noise (B, T, D), time (B,)."""
        target = ((chunk - self.action_mean) / self.action_std).flatten(1)
        start = noise.flatten(1)
        state = torch.lerp(start, target, time[:, None])
        difference = self.velocity(state, time, self.encode(observation)) - (target - start)
        return difference.square().mean()


def save_flow(policy: FlowPolicy, folder: Path) -> None:
    """Write config.json and the weights, in half precision: sampling noise is a thousand times what rounding changes.

    The statistics of observations and actions stay in full: they may be of any size.
    """
    from safetensors.torch import save_file

    config = {"type": TYPE, **dataclasses.asdict(policy.config)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {name: value.detach().half().contiguous() for name, value in policy.named_parameters()}
    statistics = {name: value for name, value in policy.state_dict().items() if name not in weights}
    save_file({**weights, **statistics}, str(folder / WEIGHTS))


def load_flow(folder: Path) -> FlowPolicy:
    """The policy in a folder, in full precision, ready to act."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    settings = json.loads((folder / "config.json").read_text())
    settings.pop("type")
    try:
        policy = FlowPolicy(FlowConfig(**{**settings, "relative": tuple(settings.get("relative", ()))}))
        policy.load_state_dict({name: value.float() for name, value in load_file(str(folder / WEIGHTS)).items()})
    except (TypeError, OSError, SafetensorError, RuntimeError) as error:
        raise KeystoneError(f"the policy in {folder} cannot be loaded: {error}") from error
    return policy.eval().requires_grad_(False)
