"""SmolVLA on a SmolVLM of 4 layers: no patch needed, only a local config and processor."""

import functools
from typing import Any

from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
from transformers import SmolVLMConfig, SmolVLMImageProcessor, SmolVLMProcessor, SmolVLMVideoProcessor

from .common import assets, byte_tokenizer, features

NAMED_TOKENS = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}


@functools.cache
def smolvlm() -> str:
    """A directory with a tiny SmolVLM config and processor."""
    directory = assets() / "smolvlm"
    tokenizer = byte_tokenizer(directory, tuple(NAMED_TOKENS.values()), NAMED_TOKENS)
    config = SmolVLMConfig(
        text_config={
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 512,
            "pad_token_id": tokenizer.pad_token_id,
            "max_position_embeddings": 2048,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 64,
            "patch_size": 16,
        },
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    config.save_pretrained(directory)
    processor = SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(),
        tokenizer=tokenizer,
        video_processor=SmolVLMVideoProcessor(),
        image_seq_len=4,
    )
    processor.save_pretrained(directory)
    return str(directory)


def build(**overrides: Any) -> SmolVLAPolicy:
    """A SmolVLA with chunks of 10 steps, 5 of them executed, 6 of 8 action dims real."""
    settings = {
        **features(),
        "device": "cpu",
        "vlm_model_name": smolvlm(),
        "load_vlm_weights": False,
        "num_vlm_layers": 4,
        "expert_width_multiplier": 0.5,
        "resize_imgs_with_padding": (64, 64),
        "chunk_size": 10,
        "n_action_steps": 5,
        "max_action_dim": 8,
        "max_state_dim": 8,
        "num_steps": 4,
    }
    return SmolVLAPolicy(SmolVLAConfig(**{**settings, **overrides}))
