"""A compact flow-matching policy for states or images: trained in minutes on one core, and sampled K wide at once."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from keystone_robotics.errors import KeystoneError
from keystone_study.policies import TYPE

WEIGHTS = "model.safetensors"
PREDICTIONS = ("velocity", "chunk")
LAST = 0.1  #: of the flow's time: towards its end the velocity that follows from a predicted chunk is anything


@dataclass(frozen=True)
class FlowConfig:
    """Everything but the weights.

    Attributes:
        observation_dim: numbers in an observation, beside the image.
        action_dim: numbers in an action.
        horizon: steps in a chunk.
        n_action_steps: how many of them are executed before the next round.
        relative: which dimensions of actions are positions relative to the robot's at the beginning of the chunk.
        width: of the hidden layers.
        blocks: residual ones.
        integration_steps: of Euler's method from noise to chunk.
        predicts: what the network's output is: the ``velocity``, or the clean ``chunk`` that it follows from. A velocity is
            the chunk minus the noise: a network narrower than the T*D numbers of a chunk cannot carry the noise through.
        image: width and height of the image in an observation, in pixels; 0 without one.
    """

    observation_dim: int
    action_dim: int
    horizon: int = 16
    n_action_steps: int = 8
    relative: tuple[int, ...] = ()
    width: int = 192
    blocks: int = 3
    integration_steps: int = 10
    predicts: str = "velocity"
    image: int = 0

    def __post_init__(self) -> None:
        if self.predicts not in PREDICTIONS:
            raise KeystoneError(f"predicts={self.predicts!r}: expected {' or '.join(PREDICTIONS)}")

    @property
    def inputs(self) -> int:
        """Length of an observation as one row: the numbers, then the bytes (3, image, image) of the image."""
        return self.observation_dim + 3 * self.image**2


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


class _ImageEncoder(nn.Sequential):
    """Images (B, 3, S, S) of bytes to (B, width). Keeps a grid of S / 16 places: what counts is where things are."""

    def __init__(self, side: int, width: int) -> None:
        channels = (3, 24, 48, 32)
        layers: list[nn.Module] = []
        for index, (before, after) in enumerate(pairwise(channels)):
            size, stride, padding = (8, 4, 2) if index == 0 else (3, 2, 1)
            layers += [nn.Conv2d(before, after, size, stride, padding), nn.ReLU()]
        super().__init__(*layers, nn.Flatten(), nn.Linear(channels[-1] * (side // 16) ** 2, width))

    def forward(self, image: Tensor) -> Tensor:
        encoded: Tensor = super().forward(image / 127.5 - 1)  # type: ignore[no-untyped-call]
        return encoded


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
        self.look = _ImageEncoder(config.image, width) if config.image else None
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
        """(B, O) in the environment's units, see `FlowConfig.inputs`, to a context (B, width)."""
        known = self.config.observation_dim
        numbers, image = observation[:, :known], observation[:, known:]
        context: Tensor = self.observe((numbers - self.observation_mean) / self.observation_std)
        if self.look is None:
            return context
        seen: Tensor = self.look(image.reshape(-1, 3, self.config.image, self.config.image))
        return context + seen

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
        output: Tensor = self.leave(hidden)
        if self.config.predicts == "velocity":
            return output
        return (output - state) / (1 - time[:, None]).clamp(min=LAST)

    def loss(self, observation: Tensor, chunk: Tensor, noise: Tensor, time: Tensor) -> Tensor:
        """How far the velocity is from a straight line: mean squared error on (B, T, D) chunks, noise (B, T, D), time (B,).

        Noise (n*B, T, D) and time (n*B,) train on n noises of each observation, which is encoded once.
        """
        each = len(noise) // len(chunk)
        target = ((chunk - self.action_mean) / self.action_std).flatten(1).repeat(each, 1)
        start = noise.flatten(1)
        state = torch.lerp(start, target, time[:, None])
        difference = self.velocity(state, time, self.encode(observation).repeat(each, 1)) - (target - start)
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
