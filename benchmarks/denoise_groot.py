"""``python -m benchmarks.denoise_groot [--quick]``: GR00T's transformer at its real width, a whole round of four steps.

- authors: LeRobot's own network (which is NVIDIA's) on a context repeated K times;
- fast: the shared-context path, with all that it prepares once in a round;
- single: the network's own four steps with one candidate.

Random weights, four of 32 blocks (they repeat in fours: text, own tokens, images, own tokens), 2048 context features. A
candidate has 17 tokens in GR00T N1.6 (16 actions and a state) and 41 in N1.7. The last rows are the action encoder and decoder
around the transformer, whose weights the authors' code copies for every candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks import denoising, harness

BLOCKS, WIDTH, CONTEXT_WIDTH, TEXT_TOKENS = 4, 1536, 2048, 30
#: Buckets of time of the four steps, as the action head counts them.
TIMES = (0, 250, 500, 750)


def build_network() -> Any:
    """32 heads of 48, as in GR00T N1.6 and N1.7."""
    from lerobot.policies.groot.action_head.cross_attention_dit import AlternateVLDiT

    network = AlternateVLDiT(
        num_attention_heads=32,
        attention_head_dim=WIDTH // 32,
        output_dim=1024,
        num_layers=BLOCKS,
        interleave_self_attention=True,
        cross_attention_dim=CONTEXT_WIDTH,
        positional_embeddings=None,
    )
    return network.eval().requires_grad_(False)


def loop_row(
    network: Any, k: int, context_tokens: int, tokens: int, rounds: int, compiled: bool = False
) -> dict[str, Any]:
    """Four steps of the transformer, preparation included; on the fast path also with a compiled step."""
    import torch

    from keystone_robotics.sample.families.groot.denoiser import SharedDiT, run_network
    from keystone_robotics.sample.kit.lengths import mark_dynamic_lengths
    from keystone_robotics.sample.kit.widen import widen

    generator = torch.Generator().manual_seed(0)
    context = torch.randn(1, context_tokens, CONTEXT_WIDTH, generator=generator)
    image = torch.arange(context_tokens)[None] < context_tokens - TEXT_TOKENS
    visible = torch.ones_like(image)
    candidates = torch.randn(k, tokens, WIDTH, generator=generator)

    def authors(rows: int) -> Any:
        masks = {"image_mask": widen(image, rows), "backbone_attention_mask": widen(visible, rows)}
        wide = widen(context, rows)
        return [network(candidates[:rows], wide, torch.full((rows,), time), **masks) for time in TIMES]

    def fast(run: Any = run_network) -> Any:
        shared = SharedDiT(network, context, torch.tensor(TIMES), visible, image, run)
        if run is not run_network:  # as the adapter does it: compiled for contexts of every length
            mark_dynamic_lengths(one for one in shared.keys_values if one is not None)
        return [shared(candidates, step) for step in range(len(TIMES))]

    variants = {"single": lambda: authors(1), "authors": lambda: authors(k), "fast": fast}
    if compiled:
        variants["compiled"] = partial(fast, torch.compile(run_network))
    return {
        "case": f"groot, K = {k}, {context_tokens} context tokens, {tokens} tokens a candidate",
        "layers": BLOCKS,
        "k": k,
        "tokens": context_tokens,
        "candidate_tokens": tokens,
        **denoising.compare_variants(variants, rounds),
    }


def embodiment_row(k: int, horizon: int, rounds: int) -> dict[str, Any]:
    """One step of the action encoder and decoder of an embodiment, at real size."""
    import torch
    from lerobot.policies.groot.groot_n1_7 import CategorySpecificMLP, MultiEmbodimentActionEncoder

    from keystone_robotics.sample.kit.widen import widen

    encoder = MultiEmbodimentActionEncoder(132, WIDTH, num_embodiments=2).requires_grad_(False)
    decoder = CategorySpecificMLP(2, 1024, 1024, 132).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    actions = torch.randn(k, horizon, 132, generator=generator)
    hidden = torch.randn(k, horizon, 1024, generator=generator)
    kind, time = torch.tensor([1]), torch.tensor([TIMES[1]])

    def authors(rows: int) -> Any:
        kinds = widen(kind, rows)
        return encoder(actions[:rows], widen(time, rows), kinds), decoder(hidden[:rows], kinds)

    def fast() -> Any:
        return encoder(actions.view(1, k * horizon, -1), time, kind), decoder(hidden.view(1, k * horizon, -1), kind)

    variants = {"single": lambda: authors(1), "authors": lambda: authors(k), "fast": fast}
    return {
        "case": f"groot, action encoder and decoder, K = {k}, {horizon} actions",
        "k": k,
        **denoising.compare_variants(variants, rounds),
    }


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """One for each case."""
    import torch

    torch.manual_seed(0)
    network = build_network()
    cases = [(4, 286, 17)]
    if not quick:
        cases += [(16, 286, 17), (4, 542, 17), (16, 542, 17), (4, 286, 41)]
    for k, context_tokens, tokens in cases:
        rounds = 1 if quick else 5 if k < 16 else 3
        # compiling takes half a minute: once is enough to know
        yield loop_row(network, k, context_tokens, tokens, rounds, compiled=(k, context_tokens) == (16, 286))
    for k in (4, 16):
        yield embodiment_row(k, horizon=16, rounds=3 if quick else 9)


def main(quick: bool) -> None:
    """Measure and write ``denoise_groot.json``."""
    harness.run("denoise_groot", rows, quick)


if __name__ == "__main__":
    main(harness.parse_quick("denoise_groot", __doc__))
