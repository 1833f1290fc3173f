"""``python -m benchmarks.denoise_smolvla [--quick]``: a step of SmolVLA's expert at its real size; see `benchmarks.denoising`.

The backbone is built without memory (on the meta device): its keys and values are made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks import denoising, harness


def build() -> Any:
    """LeRobot's SmolVLA with random weights in the action expert, sizes as of ``lerobot/smolvla_base``."""
    import torch
    from lerobot.policies.smolvla import smolvlm_with_expert
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from lerobot.policies.smolvla.modeling_smolvla import VLAFlowMatching
    from transformers import SmolVLMConfig

    text = {
        "model_type": "llama",
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "vocab_size": 49280,
        "pad_token_id": 2,
    }
    backbone = SmolVLMConfig(text_config=text)  # SmolVLM2-500M, of which SmolVLA uses the first 16 layers
    tokenizer = SimpleNamespace(fake_image_token_id=49189, global_image_token_id=49152)
    with (
        mock.patch.multiple(  # both would ask the hub
            smolvlm_with_expert,
            AutoConfig=SimpleNamespace(from_pretrained=lambda _: backbone),
            AutoProcessor=SimpleNamespace(from_pretrained=lambda _: SimpleNamespace(tokenizer=tokenizer)),
        ),
        torch.device("meta"),
    ):
        model = VLAFlowMatching(SmolVLAConfig(device="cpu", load_vlm_weights=False))
    for part in (
        model.vlm_with_expert.lm_expert,
        model.action_in_proj,
        model.action_out_proj,
        model.action_time_mlp_in,
        model.action_time_mlp_out,
    ):
        denoising.randomise(part)
    return model.eval()


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """One for each case."""
    from keystone_robotics.sample.families.smolvla.lerobot import SmolVLAOverride

    model = build()
    experts = model.vlm_with_expert
    cases = [(8, 180)] if quick else [(8, 180), (8, 1024), (16, 180)]
    for k, tokens in cases:
        cache = denoising.random_cache(experts.num_vlm_layers, experts.num_key_value_heads, tokens, 64)
        compiled = not quick and tokens == 1024  # once is enough to know: it takes a minute
        found = denoising.compare(model, SmolVLAOverride, cache, k, rounds=2 if quick else 5, compiled=compiled)
        yield {"case": f"smolvla, K = {k}, {tokens} tokens", "layers": experts.num_vlm_layers, **found}


def main(quick: bool) -> None:
    """Measure and write ``denoise_smolvla.json``."""
    harness.run("denoise_smolvla", rows, quick)


if __name__ == "__main__":
    main(harness.parse_quick("denoise_smolvla", __doc__))
