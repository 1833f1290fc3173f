"""Small models of our own with openpi's seams: the methods, arguments and results that docs/openpi.md lists."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from openpi_client.base_policy import BasePolicy
from torch import Tensor, nn

WIDTH, HORIZON, ACTION_DIM, REAL_DIMS = 16, 6, 12, 7


class Observation(NamedTuple):
    """Tensors or arrays with one row per observation."""

    prefix: Any  # (B, P, WIDTH) what an image and an instruction would become
    mask: Any  # (B, P) True for real tokens
    state: Any  # (B, ACTION_DIM)


class Attention(nn.Module):
    """One layer that looks at cached and own tokens, as openpi's Gemma does, with positions added to queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.modulate = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens, mask, positions, cache, condition):
        places = torch.sin(positions[..., None] * torch.linspace(0.1, 1.0, WIDTH))
        keys, values = self.keys(tokens) + places, self.values(tokens)
        own = (keys, values)
        if cache is not None:
            keys, values = torch.cat([cache[0], keys], 1), torch.cat([cache[1], values], 1)
        weights = (self.queries(tokens) + places) @ keys.transpose(1, 2) / WIDTH**0.5 + mask[:, 0]
        hidden = tokens + weights.softmax(-1) @ values
        return hidden if condition is None else hidden * (1 + self.modulate(condition)[:, None]), own


class TwoExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prefix, self.suffix = Attention(), Attention()
        self.gemma_expert = SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(_attn_implementation="sdpa")))

    def forward(
        self, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache=None, adarms_cond=(None, None)
    ):
        before, after = inputs_embeds
        if after is None:
            hidden, cache = self.prefix(before, attention_mask, position_ids, None, adarms_cond[0])
            return [hidden, None], cache
        hidden, _ = self.suffix(after, attention_mask, position_ids, past_key_values, adarms_cond[1])
        return [None, hidden], None


class TorchModel(nn.Module):
    """The seam of openpi's `PI0Pytorch`."""

    def __init__(self, pi05: bool = False, compiled: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(action_horizon=HORIZON, action_dim=ACTION_DIM)
        self.pi05 = pi05
        self.paligemma_with_expert = TwoExperts()
        self.state_proj, self.action_in_proj = nn.Linear(ACTION_DIM, WIDTH), nn.Linear(ACTION_DIM, WIDTH)
        self.action_out_proj, self.time = nn.Linear(WIDTH, ACTION_DIM), nn.Linear(1, WIDTH)
        if compiled is not None:
            self.sample_actions = compiled(self.sample_actions)

    def _prepare_attention_masks_4d(self, mask):
        return torch.where(mask[:, None], 0.0, -1e30)

    def embed_prefix(self, observation):
        return observation.prefix, observation.mask

    def embed_suffix(self, state, noisy_actions, timestep):
        time, tokens = self.time(timestep[:, None]), self.action_in_proj(noisy_actions)
        blocks = [1] + [0] * (HORIZON - 1)
        if not self.pi05:
            tokens = torch.cat([self.state_proj(state)[:, None], tokens + time[:, None]], 1)
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
        return self.action_out_proj(hidden[:, -HORIZON:])


class JaxModel:
    """The seam of openpi's `Pi0`: a context in a closure, a loop that XLA runs."""

    action_horizon, action_dim = HORIZON, ACTION_DIM
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
        context = jnp.tanh(observation.prefix.astype(kind) @ self.weights["encode"]).mean(1)

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
            tensors = {name: torch.as_tensor(np.array(value))[None] for name, value in inputs.items()}
            first: Any = "cpu"
        else:
            tensors = {name: jnp.asarray(value)[None] for name, value in inputs.items()}
            self._rng, first = jax.random.split(self._rng)
        if noise is not None:
            kwargs["noise"] = torch.from_numpy(noise)[None] if self._is_pytorch_model else jnp.asarray(noise)[None]
        actions = self._sample_actions(first, Observation(**tensors), **kwargs)
        assert isinstance(actions, Tensor if self._is_pytorch_model else jax.Array)
        outputs = {"state": np.asarray(tensors["state"][0]), "actions": np.asarray(actions[0])}
        return {**self._output_transform(outputs), "policy_timing": {"infer_ms": 1.0}}


def observation(seed: int = 0, prefix: int = 5) -> dict[str, Any]:
    random = np.random.RandomState(seed)
    return {
        "prefix": random.randn(prefix, WIDTH).astype(np.float32),
        "mask": np.arange(prefix) < prefix - 1,
        "state": random.randn(ACTION_DIM).astype(np.float32),
    }


MODELS = {
    "torch-pi0": TorchModel,
    "torch-pi05": functools.partial(TorchModel, pi05=True),
    "jax": JaxModel,
}
