"""openpi's own π0 and π0.5 with few random weights, inside its own `Policy` with its own LIBERO transforms."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch

PROMPT = 8  # tokens of a made-up instruction; openpi's tokenizer has to be downloaded
HORIZON, ACTION_DIM, REAL_DIMS = 10, 32, 7


def small_config(**settings: Any) -> Any:
    from openpi.models.pi0_config import Pi0Config

    sizes = {"paligemma_variant": "dummy", "action_expert_variant": "dummy", "max_token_len": PROMPT}
    return Pi0Config(
        **{**sizes, "action_horizon": HORIZON, "dtype": "float32", "pytorch_compile_mode": None, **settings}
    )


@functools.cache
def torch_model(**settings: Any) -> torch.nn.Module:
    """`PI0Pytorch` with a vision tower of two layers; every weight random, because openpi begins with zeros in adaRMS."""
    from openpi.models_pytorch import gemma_pytorch
    from openpi.models_pytorch.pi0_pytorch import PI0Pytorch

    paligemma = gemma_pytorch.PaliGemmaForConditionalGeneration

    def small(config: Any) -> Any:
        vision = config.vision_config
        vision.hidden_size, vision.intermediate_size = 32, 64
        vision.num_hidden_layers, vision.num_attention_heads = 2, 2
        vision.projection_dim = config.projection_dim = config.text_config.hidden_size
        return paligemma(config=config)

    torch.manual_seed(0)
    with mock.patch.object(gemma_pytorch, "PaliGemmaForConditionalGeneration", small):
        model = PI0Pytorch(small_config(**settings))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight, dtype=torch.float32).to(weight.dtype))
    return model.eval()


@functools.cache
def jax_model(**settings: Any) -> Any:
    """`Pi0` with the smallest vision tower that openpi knows, and every weight random."""
    import jax
    from flax import nnx
    from openpi.models import siglip

    with mock.patch.object(siglip, "decode_variant", return_value=siglip.decode_variant("mu/14")):
        model = small_config(**settings).create(jax.random.key(0))
    graph, state = nnx.split(model)
    keys = iter(jax.random.split(jax.random.key(1), 1000))
    state = jax.tree.map(
        lambda weight: weight + 0.05 * jax.random.normal(next(keys), weight.shape, weight.dtype), state
    )
    return nnx.merge(graph, state)


@dataclasses.dataclass(frozen=True)
class MadeUpPrompt:
    """Stands for `TokenizePrompt`."""

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        prompt = data.pop("prompt", "")
        tokens = np.frombuffer(prompt.encode().ljust(PROMPT, b"\0")[:PROMPT], np.uint8).astype(np.int64)
        return {**data, "tokenized_prompt": tokens, "tokenized_prompt_mask": tokens > 0}


def libero_policy(model: Any, **settings: Any) -> Any:
    """A `Policy` as `create_trained_policy` makes it for LIBERO, with made-up statistics."""
    from openpi import transforms
    from openpi.models.model import ModelType
    from openpi.policies.libero_policy import LiberoInputs, LiberoOutputs
    from openpi.policies.policy import Policy
    from openpi.shared.normalize import NormStats

    random = np.random.RandomState(0)
    statistics = {
        name: NormStats(mean=random.randn(dims), std=random.rand(dims) + 0.5)
        for name, dims in (("state", 8), ("actions", REAL_DIMS))
    }
    return Policy(
        model,
        transforms=[
            LiberoInputs(model_type=ModelType.PI0),
            transforms.Normalize(statistics),
            transforms.ResizeImages(224, 224),
            MadeUpPrompt(),
            transforms.PadStatesAndActions(ACTION_DIM),
        ],
        output_transforms=[transforms.Unnormalize(statistics), LiberoOutputs()],
        **settings,
    )


def observation(seed: int = 0) -> dict[str, Any]:
    random = np.random.RandomState(seed)
    return {
        "observation/state": random.rand(8).astype(np.float32),
        "observation/image": random.randint(256, size=(224, 224, 3), dtype=np.uint8),
        "observation/wrist_image": random.randint(256, size=(224, 224, 3), dtype=np.uint8),
        "prompt": "pick it",
    }


def torch_batch(words: Sequence[int]) -> Any:
    """Observations as `PI0Pytorch` takes them, with as many words as said; one without its last camera."""
    from openpi.models.model import IMAGE_KEYS, Observation

    random = np.random.RandomState(0)
    rows = len(words)
    data = {
        "image": {name: random.randint(256, size=(rows, 224, 224, 3), dtype=np.uint8) for name in IMAGE_KEYS},
        "image_mask": {name: np.arange(rows) < rows - (name == IMAGE_KEYS[-1]) for name in IMAGE_KEYS},
        "state": random.randn(rows, ACTION_DIM).astype(np.float32),
        "tokenized_prompt": random.randint(256, size=(rows, PROMPT)),
        "tokenized_prompt_mask": np.arange(PROMPT) < np.array(words)[:, None],
    }
    return Observation.from_dict(torch.utils._pytree.tree_map(torch.from_numpy, data))
