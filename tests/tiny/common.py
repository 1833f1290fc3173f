"""What the tiny policies share: the type itself, features, batches, local assets and teeth."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.utils.constants import (
    ACTION,
    OBS_LANGUAGE_ATTENTION_MASK,
    OBS_LANGUAGE_TOKENS,
    OBS_STATE,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

Batch = dict[str, Any]

IMAGE = "observation.images.image"
IMAGE_SIZE = 64
STATE_DIM = 6
ACTION_DIM = 6
TASK = "pick up the cube"


def take_row(batch: Batch, index: int) -> Batch:
    """Row `index` of a batch, as a batch of 1: every tensor and list is sliced along its first axis."""
    return {
        key: value[index : index + 1] if isinstance(value, Tensor | list) else value for key, value in batch.items()
    }


def predict(policy: PreTrainedPolicy, batch: Batch) -> Tensor:
    """One chunk (B, T, D) from the public entry point, on a policy with no history."""
    policy.reset()
    return policy.predict_action_chunk(dict(batch))


@dataclass(frozen=True)
class TinyPolicy:
    """A recipe for one random-weight LeRobot policy and for observations it accepts.

    `builder(**overrides)` returns the policy, `batcher(batch_size, seed)` a preprocessed observation batch as
    `select_action` takes it, `slicer(batch, index)` one row of it and `predictor(policy, batch)` a chunk,
    whose (T, D) is `chunk_shape`. `batch_sizes` are those it is tested with.
    """

    name: str
    builder: Callable[..., PreTrainedPolicy]
    batcher: Callable[[int, int], Batch]
    chunk_shape: tuple[int, int] = (10, ACTION_DIM)
    slicer: Callable[[Batch, int], Batch] = take_row
    predictor: Callable[[PreTrainedPolicy, Batch], Tensor] = predict
    batch_sizes: tuple[int, ...] = (1, 3)
    stochastic: bool = True

    def build(self, **overrides: Any) -> PreTrainedPolicy:
        """The policy in evaluation mode; the same weights at every call, no global RNG state consumed."""
        with seeded(0):
            policy = self.builder(**overrides).eval()
        sharpen(policy)
        return policy

    def batch(self, batch_size: int = 1, seed: int = 0) -> Batch:
        """A random observation; equal seeds give equal observations."""
        return self.batcher(batch_size, seed)

    def row(self, batch: Batch, index: int) -> Batch:
        """Row `index` of `batch` as a batch of 1."""
        return self.slicer(batch, index)

    def predict(self, policy: PreTrainedPolicy, batch: Batch) -> Tensor:
        """One chunk (B, T, D) through `predict_action_chunk`, whatever queues that policy keeps."""
        return self.predictor(policy, batch)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from torch's global generator at `seed`, and leave its state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def sharpen(module: nn.Module) -> None:
    """Give a randomly initialised network teeth, from a fixed generator.

    Adaptive norms and output layers start at zero, and transformer weights so small that the observation
    moves the output by less than the tolerance of an equality test: a wrong context would pass unnoticed.
    All-zero parameters become small noise, and matrices are scaled up to a deviation of 1 / sqrt(fan-in).
    """
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        weights = parameter.data
        if not weights.any():
            weights.copy_(0.1 * torch.randn(weights.shape, generator=generator))
        if weights.ndim > 1:
            fan_in = weights.shape[1] if weights.ndim == 3 else weights[0].numel()
            weights.mul_((fan_in**-0.5 / weights.float().std()).clamp(min=1))


def features(
    state_dim: int = STATE_DIM,
    action_dim: int = ACTION_DIM,
    image_shape: tuple[int, int, int] = (3, IMAGE_SIZE, IMAGE_SIZE),
    image_key: str = IMAGE,
) -> dict[str, dict[str, PolicyFeature]]:
    """Config arguments for a robot with one camera."""
    return {
        "input_features": {
            OBS_STATE: PolicyFeature(FeatureType.STATE, (state_dim,)),
            image_key: PolicyFeature(FeatureType.VISUAL, image_shape),
        },
        "output_features": {ACTION: PolicyFeature(FeatureType.ACTION, (action_dim,))},
    }


def language_batch(batch_size: int = 1, seed: int = 0, tokens: int = 8) -> Batch:
    """A state, an image in [0, 1], a tokenised instruction and the instruction itself."""
    generator = torch.Generator().manual_seed(seed)
    return {
        OBS_STATE: torch.randn(batch_size, STATE_DIM, generator=generator),
        IMAGE: torch.rand(batch_size, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator),
        OBS_LANGUAGE_TOKENS: torch.randint(4, 200, (batch_size, tokens), generator=generator),
        OBS_LANGUAGE_ATTENTION_MASK: torch.ones(batch_size, tokens, dtype=torch.bool),
        "task": [TASK] * batch_size,
    }


@functools.cache
def assets() -> Path:
    """A directory for local configs and tokenizers, removed when the process ends."""
    directory = tempfile.mkdtemp(prefix="keystone-tiny-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def byte_tokenizer(
    directory: Path,
    special_tokens: tuple[str, ...] = (),
    named_tokens: Mapping[str, str] | None = None,
    **options: Any,
) -> PreTrainedTokenizerFast:
    """Save a byte-level tokenizer without merges: a real one, that needs no download.

    `named_tokens` maps attribute names (such as `image_token`) to entries of `special_tokens`.
    """
    words = [
        "<pad>",
        "<bos>",
        "<eos>",
        "<unk>",
        *special_tokens,
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
    ]
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        extra_special_tokens=dict(named_tokens) if named_tokens else list(special_tokens),
        **options,
    )
    tokenizer.save_pretrained(directory)
    return tokenizer


@contextmanager
def patched(target: object, **replacements: Any) -> Iterator[None]:
    """Replace attributes of a module or class, and put them back."""
    originals = {name: getattr(target, name) for name in replacements}
    for name, value in replacements.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in originals.items():
            setattr(target, name, value)
