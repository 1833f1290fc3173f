"""EVO1 on an InternVL of 2 layers, saved locally because LeRobot loads it with `from_pretrained`."""

import functools
from typing import Any

from lerobot.policies.evo1.configuration_evo1 import Evo1Config
from lerobot.policies.evo1.modeling_evo1 import Evo1Policy
from transformers import InternVLConfig, InternVLModel

from .common import assets, byte_tokenizer, features, seeded

IMAGE_TOKENS = ("<img>", "</img>", "<IMG_CONTEXT>")
IMAGE_SIZE = 32
WIDTH = 32


@functools.cache
def internvl() -> str:
    """A directory with a tiny random InternVL whose image takes one token."""
    directory = assets() / "internvl"
    tokenizer = byte_tokenizer(directory, IMAGE_TOKENS, padding_side="right")
    config = InternVLConfig(
        text_config={
            "model_type": "qwen2",
            "hidden_size": WIDTH,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 512,
            "max_position_embeddings": 512,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": [IMAGE_SIZE, IMAGE_SIZE],
            "patch_size": [16, 16],
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=1,
    )
    with seeded(0):
        InternVLModel(config).save_pretrained(directory)
    return str(directory)


def build(**overrides: Any) -> Evo1Policy:
    """An EVO1 with chunks of 10 steps, 5 of them executed; it returns all 8 action dims, 6 of them real."""
    settings = {
        **features(),
        "device": "cpu",
        "vlm_model_name": internvl(),
        "vlm_num_layers": 2,
        "vlm_dtype": "float32",
        "use_flash_attn": False,
        "image_resolution": (IMAGE_SIZE, IMAGE_SIZE),
        "max_views": 2,
        "embed_dim": WIDTH,
        "hidden_dim": 64,
        "state_hidden_dim": 32,
        "num_heads": 4,
        "num_layers": 2,
        "max_action_dim": 8,
        "max_state_dim": 8,
        "chunk_size": 10,
        "n_action_steps": 5,
        "num_inference_timesteps": 4,
    }
    return Evo1Policy(Evo1Config(**{**settings, **overrides}))
