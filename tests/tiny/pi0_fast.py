"""π0-FAST: autoregressive, and deterministic at its default temperature of 0."""

import functools
from types import SimpleNamespace
from typing import Any

from lerobot.policies.pi0_fast import modeling_pi0_fast
from lerobot.policies.pi0_fast.configuration_pi0_fast import PI0FastConfig
from torch import Tensor

from .common import assets, byte_tokenizer, features, patched
from .pi import IMAGE_SIZE, small_paligemma


class ByteActions:
    """The parts of the FAST action tokenizer that decoding uses: one DCT coefficient per token."""

    scale = 10.0
    min_token = -32

    def __init__(self) -> None:
        self.bpe_tokenizer = SimpleNamespace(decode=self.decode)

    @staticmethod
    def decode(tokens: Tensor) -> str:
        """Characters whose code points are 0 to 63."""
        return "".join(chr(token % 64) for token in tokens.tolist())


@functools.cache
def tokenizer() -> str:
    """A directory with a byte tokenizer."""
    directory = assets() / "pi0_fast"
    byte_tokenizer(directory)
    return str(directory)


def build(**overrides: Any) -> modeling_pi0_fast.PI0FastPolicy:
    """A π0-FAST that decodes 24 tokens, padded to a chunk of 5 steps."""
    settings = {
        **features(),
        "device": "cpu",
        "text_tokenizer_name": tokenizer(),
        "validate_action_token_prefix": False,
        "image_resolution": (IMAGE_SIZE, IMAGE_SIZE),
        "max_action_dim": 8,
        "max_state_dim": 8,
        "max_decoding_steps": 24,
        "chunk_size": 10,
        "n_action_steps": 5,
    }
    actions = SimpleNamespace(from_pretrained=lambda *names, **options: ByteActions())
    with small_paligemma(modeling_pi0_fast), patched(modeling_pi0_fast, AutoProcessor=actions):
        return modeling_pi0_fast.PI0FastPolicy(PI0FastConfig(**{**settings, **overrides}))
