"""``python -m benchmarks.denoise_fastwam [--quick]``: Fast-WAM's action expert at its real width, a round of four steps.

- authors: LeRobot's own network on a video cache and a text with a row for each candidate;
- fast: the shared-context path, with all that it prepares once in a round;
- single: the network's own steps with one candidate.

Random weights, four of 30 layers, 32 actions a candidate. The video is the first frame: 120 tokens with RoboTwin's three
cameras. The text is padded to 128 tokens, 40 of them real here, and the state is one more. A real round has ten steps: what is
prepared once weighs more here. So does the embedding of the text, once a step for all layers, which the authors repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks import denoising, harness

LAYERS, STEPS, ACTIONS, ACTION_DIM = 4, 4, 32, 14
VIDEO_TOKENS, TEXT_TOKENS, REAL_TEXT_TOKENS = 120, 129, 41


def build_model() -> Any:
    """LeRobot's model with its action expert as configured; the video expert, which is not run, is small."""
    import torch
    from lerobot.policies.fastwam.configuration_fastwam import default_action_dit_config
    from lerobot.policies.fastwam.wan.modular import ActionDiT, FastWAM, MoT

    config = {**default_action_dit_config(ACTION_DIM), "num_layers": LAYERS}
    action, video = ActionDiT(**config), ActionDiT(**{**config, "hidden_dim": 8, "ffn_dim": 8, "text_dim": 8})
    mot = MoT({"video": video, "action": action}, mot_checkpoint_mixed_attn=False)
    model = FastWAM(video, action, mot, vae=torch.nn.Identity(), text_dim=config["text_dim"])
    return model.eval().requires_grad_(False)


def observation(model: Any) -> dict[str, Any]:
    """What a denoising step is given, apart from actions and time: random keys, values and text."""
    import torch

    generator = torch.Generator().manual_seed(0)
    expert, everything = model.action_expert, VIDEO_TOKENS + ACTIONS
    width = expert.num_heads * expert.attn_head_dim
    real = torch.arange(TEXT_TOKENS)[None] < REAL_TEXT_TOKENS - 1
    real[:, -1] = True  # the state
    return {
        "context": torch.randn(1, TEXT_TOKENS, expert.text_dim, generator=generator),
        "context_mask": real,
        "video_kv_cache": [
            {name: torch.randn(1, VIDEO_TOKENS, width, generator=generator) for name in ("k", "v")}
            for _ in range(LAYERS)
        ],
        "attention_mask": torch.ones(everything, everything, dtype=torch.bool),
        "video_seq_len": VIDEO_TOKENS,
    }


def uncompiled(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that is not compiled."""
    return step


def row(model: Any, k: int, rounds: int) -> dict[str, Any]:
    """A round of all steps, preparation included."""
    import torch

    from keystone_robotics.sample.families.fastwam.denoiser import recognises
    from keystone_robotics.sample.families.fastwam.flow import denoise

    if not recognises(model):
        raise RuntimeError("LeRobot's Fast-WAM is not known to the fast path: nothing to measure")
    given = observation(model)
    noise = torch.randn(k, ACTIONS, ACTION_DIM, generator=torch.Generator().manual_seed(1))
    call = {"num_inference_steps": STEPS, "sigma_shift": None}
    run = partial(denoise, model, call=call, given=given, compiled=uncompiled)
    variants = {
        "single": partial(run, noise[:1]),
        "authors": partial(run, noise),
        "fast": partial(run, noise, shared=True),
    }
    return {
        "case": f"fastwam, K = {k}, {VIDEO_TOKENS} video tokens, {TEXT_TOKENS} of text, {LAYERS} of 30 layers",
        "layers": LAYERS,
        "k": k,
        "tokens": VIDEO_TOKENS,
        **denoising.compare_variants(variants, rounds),
    }


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """One for each case."""
    import torch

    torch.manual_seed(0)
    model = build_model()
    for k in (2,) if quick else (8, 16):
        yield row(model, k, rounds=1 if quick else 3)


def main(quick: bool) -> None:
    """Measure and write ``denoise_fastwam.json``."""
    harness.run("denoise_fastwam", rows, quick)


if __name__ == "__main__":
    main(harness.parse_quick("denoise_fastwam", __doc__))
