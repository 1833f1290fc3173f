"""Small models of our own with openpi's seams: the methods, arguments and results that docs/openpi.md lists."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gemma_toy import WIDTH, TwoExperts
from openpi_client.base_policy import BasePolicy
from torch import Tensor, nn

HORIZON, ACTION_DIM, REAL_DIMS, PROMPT = 6, 12, 7, 4
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


class Observation(NamedTuple):
    """openpi's, for tensors or arrays with one row per observation."""

    images: dict[str, Any]  # (B, H, W, 3) in [-1, 1]
    image_masks: dict[str, Any]  # (B,) True for a camera that is there
    state: Any  # (B, ACTION_DIM)
    tokenized_prompt: Any  # (B, PROMPT)
    tokenized_prompt_mask: Any  # (B, PROMPT) True for real tokens

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Observation:
        images = {name: image / 127.5 - 1 for name, image in data["image"].items()}
        assert sorted(images) == sorted(CAMERAS)
        rest = {name: data[name] for name in ("state", "tokenized_prompt", "tokenized_prompt_mask")}
        return cls(images, data["image_mask"], **rest)


def prefix_of(observation: Observation, library: Any) -> tuple[Any, Any]:
    """(B, P, WIDTH) tokens, one for each camera and each word, and (B, P) which are real; in torch or jax.numpy."""
    places = library.arange(WIDTH)
    colours = [
        observation.images[name].reshape(len(observation.state), -1, 3).mean(1)[:, places % 3] for name in CAMERAS
    ]
    words = library.sin(observation.tokenized_prompt[..., None] * (1.0 + places))
    tokens = library.concatenate([library.stack(colours, 1), words], 1)
    cameras = library.stack([observation.image_masks[name] for name in CAMERAS], 1)
    return tokens, library.concatenate([cameras, observation.tokenized_prompt_mask], 1)


class TorchModel(nn.Module):
    """The seam of openpi's `PI0Pytorch`."""

    def __init__(self, pi05: bool = False, compiled: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(action_horizon=HORIZON, action_dim=ACTION_DIM, max_token_len=PROMPT)
        self.pi05 = pi05
        self.paligemma_with_expert = TwoExperts(pi05)
        self.state_proj, self.action_in_proj = nn.Linear(ACTION_DIM, WIDTH), nn.Linear(ACTION_DIM, WIDTH)
        self.action_out_proj, self.time = nn.Linear(WIDTH, ACTION_DIM), nn.Linear(1, WIDTH)
        if compiled is not None:
            self.sample_actions = compiled(self.sample_actions)

    def _prepare_attention_masks_4d(self, mask):
        return torch.where(mask[:, None], 0.0, -1e30)

    def embed_prefix(self, observation):
        return prefix_of(observation, torch)

    def embed_suffix(self, state, noisy_actions, timestep):
        time, tokens = self.time(timestep[:, None]), self.action_in_proj(noisy_actions)
        blocks = [1] + [0] * (HORIZON - 1)
        if not self.pi05:
            tokens = torch.cat([self.state_proj(state.to(torch.float32))[:, None], tokens + time[:, None]], 1)
            blocks = [1, *blocks]
        rows = tokens.shape[0]
        starts = torch.tensor(blocks, dtype=tokens.dtype).expand(rows, len(blocks))
        return tokens, torch.ones(rows, len(blocks), dtype=torch.bool), starts, time if self.pi05 else None

    @torch.no_grad()
    def sample_actions(self, device, observation, noise=None, num_steps=10):
        rows = observation.state.shape[0]
        if noise is None:
            noise = torch.normal(mean=0.0, std=1.0, size=(rows, HORIZON, ACTION_DIM), device=device)
        tokens, mask = self.embed_prefix(observation)
        see = self._prepare_attention_masks_4d(mask[:, None, :] & mask[:, :, None])
        _, cache = self.paligemma_with_expert.forward(see, mask.cumsum(1) - 1, None, [tokens, None], use_cache=True)
        for step in range(num_steps):
            time = torch.full((rows,), 1.0 - step / num_steps)
            noise = noise - self.denoise_step(observation.state, mask, cache, noise, time) / num_steps
        return noise

    def denoise_step(self, state, prefix_pad_masks, past_key_values, x_t, timestep):
        tokens, padding, starts, condition = self.embed_suffix(state, x_t, timestep)
        block = starts.cumsum(1)
        among = (block[:, None, :] <= block[:, :, None]) & padding[:, None, :] & padding[:, :, None]
        before = prefix_pad_masks[:, None, :].expand(-1, tokens.shape[1], -1)
        (_, hidden), _ = self.paligemma_with_expert.forward(
            self._prepare_attention_masks_4d(torch.cat([before, among], 2)),
            prefix_pad_masks.sum(1)[:, None] + padding.cumsum(1) - 1,
            past_key_values,
            [None, tokens],
            use_cache=False,
            adarms_cond=[None, condition],
        )
        return self.action_out_proj(hidden[:, -HORIZON:].to(torch.float32))


class JaxModel:
    """The seam of openpi's `Pi0`: a context in a closure, a loop that XLA runs."""

    action_horizon, action_dim, max_token_len = HORIZON, ACTION_DIM, PROMPT
    traced = 0

    def __init__(self, dtype: str = "float32") -> None:
        random = np.random.RandomState(0)
        self.weights = {
            name: jnp.asarray(random.randn(*shape) / 4, dtype)
            for name, shape in (
                ("encode", (WIDTH, WIDTH)),
                ("enter", (ACTION_DIM, WIDTH)),
                ("leave", (WIDTH, ACTION_DIM)),
            )
        }

    def compute_loss(self, rng, observation, actions):
        raise NotImplementedError

    def sample_actions(self, rng, observation, *, num_steps=10, noise=None):
        type(self).traced += 1
        kind = self.weights["encode"].dtype
        if noise is None:
            noise = jax.random.normal(rng, (observation.state.shape[0], HORIZON, ACTION_DIM))
        tokens, real = prefix_of(observation, jnp)
        context = (jnp.tanh(tokens.astype(kind) @ self.weights["encode"]) * real[..., None].astype(kind)).mean(1)

        def step(carry):
            actions, time = carry
            hidden = jnp.tanh(actions.astype(kind) @ self.weights["enter"] + context[:, None])
            return actions - (hidden @ self.weights["leave"]).astype(actions.dtype) / num_steps, time - 1 / num_steps

        return jax.lax.while_loop(lambda carry: carry[1] > 0.5 / num_steps, step, (noise, 1.0))[0]


class TokenModel(JaxModel):
    """The seam of openpi's π0-FAST, which takes no noise."""

    def sample_actions(self, rng, observation, *, temperature=0.0):
        return jnp.zeros((observation.state.shape[0], HORIZON, ACTION_DIM))


def jitted(method: Any) -> Any:
    """Openpi's `module_jit`: the weights go in as an argument, frozen."""
    model, weights = method.__self__, method.__self__.weights

    def run(weights, *args, **kwargs):
        copy = object.__new__(type(model))
        copy.weights = weights
        return method.__func__(copy, *args, **kwargs)

    compiled = jax.jit(run)
    return functools.wraps(method)(lambda *args, **kwargs: compiled(weights, *args, **kwargs))


class Transforms:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        for transform in self.transforms:
            data = transform(data)
        return data


class Unnormalise:
    def __init__(self, std: Any) -> None:
        self.norm_stats = {"actions": SimpleNamespace(std=np.asarray(std, np.float32))}

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        std, actions = self.norm_stats["actions"].std, data["actions"]
        wide = np.concatenate([std, np.ones(actions.shape[-1] - len(std))])
        return {**data, "actions": actions * (wide + 1e-6)}


def cut(data: dict[str, Any]) -> dict[str, Any]:
    """What a robot's output transform does."""
    return {"actions": np.asarray(data["actions"][..., :REAL_DIMS])}


class Policy(BasePolicy):
    """The seam of openpi's `Policy`: it binds or jits the sampler when it is made."""

    def __init__(self, model: Any, outputs: tuple[Any, ...] = (cut,), **sample_kwargs: Any) -> None:
        self._model, self._is_pytorch_model = model, isinstance(model, nn.Module)
        self._input_transform, self._output_transform = Transforms(), Transforms(*outputs)
        self._sample_kwargs, self._metadata = sample_kwargs, {"robot": "toy"}
        self.seen: list[str] = []
        if self._is_pytorch_model:
            self._sample_actions = model.sample_actions
        else:
            self._sample_actions, self._rng = jitted(model.sample_actions), jax.random.key(0)

    @property
    def metadata(self) -> dict[str, Any]:
        return self._metadata

    def infer(self, obs: dict[str, Any], *, noise: Any = None) -> dict[str, Any]:
        self.seen = sorted(obs)
        inputs = self._input_transform(dict(obs))
        kwargs = dict(self._sample_kwargs)
        if self._is_pytorch_model:
            tensors = jax.tree.map(lambda value: torch.as_tensor(np.array(value))[None], inputs)
            first: Any = "cpu"
        else:
            tensors = jax.tree.map(lambda value: jnp.asarray(value)[None], inputs)
            self._rng, first = jax.random.split(self._rng)
        if noise is not None:
            kwargs["noise"] = torch.from_numpy(noise)[None] if self._is_pytorch_model else jnp.asarray(noise)[None]
        actions = self._sample_actions(first, Observation.from_dict(tensors), **kwargs)
        assert isinstance(actions, Tensor if self._is_pytorch_model else jax.Array)
        outputs = {"state": np.asarray(tensors["state"][0]), "actions": np.asarray(actions[0])}
        return {**self._output_transform(outputs), "policy_timing": {"infer_ms": 1.0}}


def observation(seed: int = 0) -> dict[str, Any]:
    """Without one camera; instructions have one to three words."""
    random = np.random.RandomState(seed)
    return {
        "image": {name: random.randint(256, size=(4, 5, 3), dtype=np.uint8) for name in CAMERAS},
        "image_mask": {name: np.bool_(name != CAMERAS[2]) for name in CAMERAS},
        "state": random.randn(ACTION_DIM).astype(np.float32),
        "tokenized_prompt": random.randint(9, size=PROMPT),
        "tokenized_prompt_mask": np.arange(PROMPT) < PROMPT - 1 - seed % 3,
    }


def rows(count: int, to: Any) -> Observation:
    """A batch of observations; ``to`` makes tensors or arrays of numpy's."""
    return Observation.from_dict(
        jax.tree.map(lambda *values: to(np.stack(values)), *(observation(seed) for seed in range(count)))
    )


MODELS = {
    "torch-pi0": TorchModel,
    "torch-pi05": functools.partial(TorchModel, pi05=True),
    "jax": JaxModel,
}
