"""π0 and π0.5: LeRobot hard-codes the PaliGemma and expert sizes, so they are patched while building."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from lerobot.policies.pi0 import modeling_pi0
from lerobot.policies.pi0.configuration_pi0 import PI0Config
from lerobot.policies.pi05 import modeling_pi05
from lerobot.policies.pi05.configuration_pi05 import PI05Config
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import CONFIG_MAPPING

from .common import features, patched

WIDTH = 64
IMAGE_SIZE = 28
VOCABULARY = 260
"""The four special tokens and 256 bytes of `byte_tokenizer`."""


def shrink_vision(config: PreTrainedConfig) -> None:
    """Reduce the SigLIP tower and the vocabulary of a PaliGemma config in place."""
    vision = config.vision_config
    vision.image_size = IMAGE_SIZE
    vision.hidden_size = 32
    vision.intermediate_size = 64
    vision.num_hidden_layers = 2
    vision.num_attention_heads = 2
    vision.projection_dim = WIDTH
    config.projection_dim = WIDTH
    config.text_config.vocab_size = VOCABULARY
    config._vocab_size = VOCABULARY
    config.image_token_index = VOCABULARY - 1


class SmallVocabulary:
    """`CONFIG_MAPPING`, except that Gemma's vocabulary is small whatever is asked for."""

    def __getitem__(self, model_type: str) -> Any:
        config = CONFIG_MAPPING[model_type]
        if model_type != "gemma":
            return config
        return lambda **settings: config(**{**settings, "vocab_size": VOCABULARY})


@contextmanager
def small_paligemma(modeling: ModuleType, depth: int = 2) -> Iterator[None]:
    """Shrink the PaliGemma, and the Gemma expert if there is one, that `modeling` builds, to this many layers."""
    paligemma = modeling.PaliGemmaForConditionalGenerationWithPiGemma

    def gemma_config(variant: str) -> Any:
        return modeling.GemmaConfig(width=WIDTH, depth=depth, mlp_dim=128, num_heads=8, num_kv_heads=1, head_dim=16)

    def small(config: PreTrainedConfig) -> PreTrainedModel:
        shrink_vision(config)
        return paligemma(config=config)

    with patched(
        modeling,
        get_gemma_config=gemma_config,
        CONFIG_MAPPING=SmallVocabulary(),
        PaliGemmaForConditionalGenerationWithPiGemma=small,
    ):
        yield


SETTINGS = {
    **features(),
    "device": "cpu",
    "chunk_size": 10,
    "n_action_steps": 5,
    "max_action_dim": 8,
    "max_state_dim": 8,
    "num_inference_steps": 4,
    "image_resolution": (IMAGE_SIZE, IMAGE_SIZE),
    "tokenizer_max_length": 16,
}


def build_pi0(**overrides: Any) -> modeling_pi0.PI0Policy:
    """A π0 with chunks of 10 steps, 5 of them executed, 6 of 8 action dims real."""
    with small_paligemma(modeling_pi0):
        return modeling_pi0.PI0Policy(PI0Config(**{**SETTINGS, **overrides}))


def build_pi05(depth: int = 2, **overrides: Any) -> modeling_pi05.PI05Policy:
    """A π0.5 with chunks of 10 steps, 5 of them executed, 6 of 8 action dims real."""
    with small_paligemma(modeling_pi05, depth):
        return modeling_pi05.PI05Policy(PI05Config(**{**SETTINGS, **overrides}))
