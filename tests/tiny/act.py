"""ACT: deterministic, so KeyStone has nothing to choose from and must say so."""

from typing import Any

from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy

from .common import features


def build(**overrides: Any) -> ACTPolicy:
    """An ACT with chunks of 10 steps, 5 of them executed."""
    settings = {
        **features(),
        "device": "cpu",
        "pretrained_backbone_weights": None,
        "dim_model": 32,
        "n_heads": 2,
        "dim_feedforward": 64,
        "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1,
        "latent_dim": 8,
        "chunk_size": 10,
        "n_action_steps": 5,
    }
    return ACTPolicy(ACTConfig(**{**settings, **overrides}))
