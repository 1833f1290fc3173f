"""``python -m benchmarks.denoise_pi05 [--quick]``: a step of π0.5's expert at its real size; see `benchmarks.denoising`.

The backbone is built without memory (on the meta device): its keys and values are made up. The layers of the expert have their
real width; six of the eighteen are built, with ``--quick`` two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import denoising, harness


def build(layers: int) -> Any:
    """LeRobot's π0.5 with random weights in the first layers of the action expert (18 of width 1024)."""
    import torch
    from lerobot.policies.pi05.configuration_pi05 import PI05Config
    from lerobot.policies.pi05.modeling_pi05 import PI05Pytorch

    with torch.device("meta"):
        model = PI05Pytorch(PI05Config(device="cpu", dtype="float32"))
    expert = model.paligemma_with_expert.gemma_expert.model
    expert.layers = expert.layers[:layers]
    expert.config.num_hidden_layers = layers
    for part in (expert, model.action_in_proj, model.action_out_proj, model.time_mlp_in, model.time_mlp_out):
        denoising.randomise(part)
    expert.rotary_emb = type(expert.rotary_emb)(
        expert.config
    )  # computed when it is made, which the meta device does not
    return model.eval()


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """One for each case."""
    from keystone_robotics.sample.families.pi.lerobot import Pi05Override

    # A layer costs as much as the next one, so six tell what eighteen would; compiling, minutes for some layers, on two.
    cases = [(2, 8, 968, False)] if quick else [(6, 8, 968, False), (6, 16, 968, False), (2, 8, 968, True)]
    model, built = None, 0
    for layers, k, tokens, compiled in cases:
        if layers != built:
            model = None  # make room first
            model, built = build(layers), layers
        cache = denoising.random_cache(layers, 1, tokens, 256)
        found = denoising.compare(model, Pi05Override, cache, k, rounds=2 if quick else 3, compiled=compiled)
        yield {"case": f"pi05, K = {k}, {tokens} tokens, {layers} layers", "layers": layers, **found}


def main(quick: bool) -> None:
    """Measure and write ``denoise_pi05.json``."""
    harness.run("denoise_pi05", rows, quick)


if __name__ == "__main__":
    main(harness.parse_quick("denoise_pi05", __doc__))
