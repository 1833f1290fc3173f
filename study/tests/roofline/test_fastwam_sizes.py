"""Fast-WAM's sizes in the roofline are those of LeRobot's network at its default configuration, its operations counted."""

import pytest
import torch
from lerobot.policies.fastwam.configuration_fastwam import FastWAMConfig, default_action_dit_config
from lerobot.policies.fastwam.wan.modular import ActionDiT, FastWAM, MoT

from keystone_robotics.sample.families.fastwam.flow import denoise
from keystone_study.roofline import MODELS
from tiny.efficient import as_on_cuda
from tiny.shapes import Operations

MODEL = MODELS["fastwam"]
CONFIG = default_action_dit_config(action_dim=14)


def test_parameters_by_what_they_work_on() -> None:
    with torch.device("meta"):
        expert = ActionDiT(**CONFIG)
    millions = {"time": 0.0, "context": 0.0, "actions": 0.0}
    for name, weight in expert.named_parameters():
        reads = "text_embedding" in name or ".cross_attn.k." in name or ".cross_attn.v." in name
        millions["time" if name.startswith("time_") else "context" if reads else "actions"] += weight.numel() / 1e6
    assert millions["actions"] == pytest.approx(MODEL.weights, rel=0.01)
    assert millions["time"] == pytest.approx(MODEL.time_weights, rel=0.01)
    assert millions["context"] == pytest.approx(MODEL.context_weights, rel=0.01)


def test_layers_heads_and_tokens() -> None:
    assert (CONFIG["num_layers"], CONFIG["attn_head_dim"]) == (MODEL.layers, MODEL.head)
    assert CONFIG["num_heads"] * CONFIG["attn_head_dim"] == MODEL.query_width == MODEL.cache_width // 2
    policy = FastWAMConfig(action_dim=14)
    assert (policy.action_horizon, policy.num_inference_steps) == (MODEL.suffix, MODEL.steps)
    assert policy.context_len + 1 == MODEL.projected  # and the state
    video = (384 // 32) * (320 // 32)  # RoboTwin's image; the VAE makes one of 16 pixels, the patches one of 2
    assert (video, video + MODEL.projected) == (MODEL.encoder_tokens, MODEL.prefix)


def operations(layers: int, steps: int, shared: bool) -> int:
    """Of a round without its encoding; width and number of tokens do not matter."""
    small = {"hidden_dim": 12, "ffn_dim": 12, "text_dim": 12, "num_heads": 2, "attn_head_dim": 8, "num_layers": layers}
    action, video = (ActionDiT(**{**CONFIG, **small}) for _ in range(2))
    mot = MoT({"video": video, "action": action}, mot_checkpoint_mixed_attn=False)
    model = FastWAM(video, action, mot, vae=torch.nn.Identity(), text_dim=12).eval().requires_grad_(False)
    given = {
        "context": torch.randn(1, 7, 12),
        "context_mask": torch.arange(7)[None] < 5,
        "video_kv_cache": [{name: torch.randn(1, 6, 16) for name in ("k", "v")} for _ in range(layers)],
        "attention_mask": torch.ones(11, 11, dtype=torch.bool),
        "video_seq_len": 6,
    }
    with as_on_cuda(), torch.no_grad(), Operations() as counted:
        call = {"num_inference_steps": steps, "sigma_shift": None}
        denoise(model, torch.randn(3, 5, 14), call, given, lambda step: step, shared)
    return counted.count


@pytest.mark.parametrize("shared", [False, True])
def test_operations_of_a_step(shared: bool) -> None:
    two, three = (operations(layers, 3, shared) - operations(layers, 2, shared) for layers in (2, 3))
    found = two + (MODEL.layers - 2) * (three - two)
    assert found == pytest.approx(MODEL.shared_ops if shared else MODEL.ops, rel=0.02)  # other versions of torch differ
