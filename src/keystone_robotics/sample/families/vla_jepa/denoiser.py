"""VLA-JEPA's diffusion transformer: GR00T's (see `groot.denoiser`) with other attribute names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from keystone_robotics.sample.families.groot.denoiser import recognises_attention
from keystone_robotics.sample.kit.bypass import Bypass
from keystone_robotics.sample.kit.modulation import is_plain
from keystone_robotics.sample.proxies import original_class

#: For the network.
BYPASS = Bypass(
    called_modules=frozenset(
        {"timestep_encoder", "linear", "to_q", "to_k", "to_v", "to_out.0", "norm2", "ff", "proj_out_1", "proj_out_2"}
    )
)


def as_groot_dit(network: Any) -> SimpleNamespace:
    """The network with the attribute names of `SharedDiT`, alternating cross- and self-attention."""
    blocks = [
        SimpleNamespace(norm1=block.norm1, attn1=block.attn1, norm3=block.norm2, ff=block.ff, pos_embed=None)
        for block in network.transformer_blocks
    ]
    return SimpleNamespace(
        timestep_encoder=network.timestep_encoder,
        transformer_blocks=blocks,
        norm_out=network.norm_out,
        proj_out_1=network.proj_out_1,
        proj_out_2=network.proj_out_2,
        config=SimpleNamespace(interleave_self_attention=True),
    )


def recognises(network: Any) -> bool:
    """Whether `SharedDiT` supports this network; others run their own code."""
    parts = ("timestep_encoder", "transformer_blocks", "norm_out", "proj_out_1", "proj_out_2")
    if (
        original_class(network).__name__ != "DiT"
        or network.training
        or not all(hasattr(network, part) for part in parts)
    ):
        return False
    return is_plain(network.norm_out) and all(
        _recognises_block(block, index % 2 == 0) for index, block in enumerate(network.transformer_blocks)
    )


def _recognises_block(block: Any, crosses: bool) -> bool:
    if not all(hasattr(block, part) for part in ("norm1", "attn1", "norm2", "ff", "is_cross_attention")):
        return False
    names = tuple(original_class(part).__name__ for part in (block, block.norm1))
    return (
        names == ("BasicTransformerBlock", "AdaLayerNorm")
        and block.is_cross_attention == crosses
        and hasattr(block.norm1, "linear")
        and is_plain(getattr(block.norm1, "norm", None))
        and recognises_attention(block.attn1)
    )
