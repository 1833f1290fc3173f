"""``python -m benchmarks.denoise_heads [--quick]``: EVO1, VLA-JEPA, EO1 and MolmoAct2 at their real widths, one or two layers.

- authors: LeRobot's own code on a context, or a cache, with a row for each candidate;
- fast: the shared-context path, with all that it prepares once in a round;
- single: LeRobot's own code with one candidate.

Random weights, two steps, so that what is prepared once weighs more than in a real round. EVO1: 50 actions that look at 800
tokens, of which 544 are real, since one of three cameras is absent. VLA-JEPA: 40 tokens a candidate, 32 of context. EO1: eight
actions on a prompt of 300 tokens; Wall-X has the same decoder. MolmoAct2: 30 actions on 600 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import denoising, harness

STEPS = 2

#: Runs a round of so many candidates, with all that it prepares, and returns the outputs of the steps.
Round = Callable[[int], Any]


def row(name: str, k: int, tokens: int, layers: str, rounds: int, authors: Round, fast: Round) -> dict[str, Any]:
    """Both variants, and a single candidate in the authors' code."""
    variants = {"single": lambda: authors(1), "authors": lambda: authors(k), "fast": lambda: fast(k)}
    return {
        "case": f"{name}, K = {k}, {tokens} context tokens, {layers}",
        "k": k,
        "tokens": tokens,
        **denoising.compare_variants(variants, rounds),
    }


def evo1(k: int, rounds: int) -> dict[str, Any]:
    """One of eight blocks, which are all alike."""
    import torch
    from lerobot.policies.evo1.flow_matching import BasicTransformerBlock

    from keystone_robotics.sample.families.evo1.denoiser import prepare, run_blocks

    width, length, real = 896, 800, 544
    blocks = torch.nn.ModuleList([BasicTransformerBlock(width, 8, 4 * width)]).eval().requires_grad_(False)
    context, padding = torch.randn(1, length, width), torch.arange(length)[None] >= real
    tokens, times = torch.randn(k, 50, width), torch.randn(STEPS, width)

    def authors(many: int) -> Any:
        wide, hidden = context.repeat(many, 1, 1), padding.repeat(many, 1)
        return [blocks[0](tokens[:many], wide, time.expand(many, -1), hidden) for time in times]

    def fast(many: int) -> Any:
        seen = prepare(blocks, context, padding)
        return [run_blocks(blocks, seen, tokens[:many], time) for time in times]

    return row(
        "evo1", k, length, "1 of 8 layers (on a CPU, its own attention is slow for several rows)", rounds, authors, fast
    )


def vla_jepa(k: int, rounds: int) -> dict[str, Any]:
    """Two of 16 blocks: one looks at the context, one at its own tokens."""
    import torch
    from lerobot.policies.vla_jepa.action_head import DiT

    from keystone_robotics.sample.families.groot.denoiser import SharedDiT
    from keystone_robotics.sample.families.vla_jepa.denoiser import as_groot_dit
    from keystone_robotics.sample.kit.widen import widen

    network = DiT(12, 64, output_dim=1024, num_layers=2, dropout=0.2, cross_attention_dim=2048)
    network.eval().requires_grad_(False)
    context, tokens = torch.randn(1, 32, 2048), torch.randn(k, 40, 768)
    times = torch.tensor([0, 500])

    def authors(many: int) -> Any:
        return [network(tokens[:many], widen(context, many), time.expand(many)) for time in times]

    def fast(many: int) -> Any:
        shared = SharedDiT(as_groot_dit(network), context, times)
        return [shared(tokens[:many], step) for step in range(STEPS)]

    return row("vla_jepa", k, 32, "2 of 16 layers", rounds, authors, fast)


def eo1(k: int, rounds: int) -> dict[str, Any]:
    """One of the 36 layers of Qwen2.5-VL 3B."""
    import copy

    import torch
    from transformers.models.qwen2_5_vl import Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel

    from keystone_robotics.sample.families.qwen.denoiser import denoise, prepare

    prompt, actions, width = 300, 8, 2048
    config = Qwen2_5_VLTextConfig(
        hidden_size=width,
        intermediate_size=11008,
        num_hidden_layers=1,
        num_attention_heads=16,
        num_key_value_heads=2,
        vocab_size=8,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    decoder = Qwen2_5_VLTextModel(config).eval().requires_grad_(False)
    cache = denoising.random_cache(1, 2, prompt, 128)
    steps = torch.randn(STEPS, k, actions, width)
    positions = torch.arange(prompt, prompt + actions).expand(3, 1, actions)

    def authors(many: int) -> Any:
        wide = copy.deepcopy(cache)
        wide.batch_repeat_interleave(many)
        outputs = []
        for tokens in steps:
            wide.crop(prompt)
            output = decoder(
                inputs_embeds=tokens[:many],
                attention_mask=torch.ones(many, prompt + actions),
                position_ids=positions.expand(3, many, actions),
                past_key_values=wide,
                use_cache=True,
            )
            outputs.append(output.last_hidden_state)
        return outputs

    def fast(many: int) -> Any:
        causal, real = torch.ones(actions, actions).bool().tril(), torch.ones(1, prompt).bool()
        shared = prepare(decoder, steps, real, cache, positions, causal)
        return [denoise(shared, tokens[:many]) for tokens in steps]

    return row("eo1", k, prompt, "1 of 36 layers", rounds, authors, fast)


def molmoact2(k: int, rounds: int) -> dict[str, Any]:
    """One of 32 layers of the action expert."""
    import torch
    from lerobot.policies.molmoact2.molmoact2_hf_model.configuration_molmoact2 import MolmoAct2ActionExpertConfig
    from lerobot.policies.molmoact2.molmoact2_hf_model.modeling_molmoact2 import ActionExpert, ActionExpertContext

    from keystone_robotics.sample.families.molmoact2.lerobot import MolmoAct2CrossAttentionOverride
    from keystone_robotics.sample.kit.widen import widen

    length, layers, heads = 600, 1, 16
    config = MolmoAct2ActionExpertConfig(num_layers=layers, num_heads=heads)
    expert = ActionExpert(config, llm_dim=8, llm_kv_dim=8, llm_num_layers=layers).eval().requires_grad_(False)
    for weight in expert.parameters():  # those of the modulation and of the output begin at zero
        weight.normal_(0.0, 0.02)
    pairs = [(torch.randn(1, length, heads, 64), torch.randn(1, length, heads, 64)) for _ in range(layers)]
    actions, times = torch.randn(k, 30, config.max_action_dim), torch.arange(STEPS) / STEPS

    def run(many: int, rows: int) -> Any:
        contexts = [(widen(keys, rows), widen(values, rows)) for keys, values in pairs]
        context = ActionExpertContext(
            contexts, cross_mask=torch.zeros(rows, 1, 1, length), self_mask=None, valid_action=None
        )
        modulations = expert.prepare_modulation_cache([time.expand(rows) for time in times])
        return [
            expert.forward_with_context(actions[:many], one.conditioning, context=context, modulation=one)
            for one in modulations
        ]

    attentions = [block.cross_attn for block in expert.blocks]
    with denoising.attached(k, expert, MolmoAct2CrossAttentionOverride, attentions):
        return row(
            "molmoact2", k, length, "1 of 32 layers", rounds, lambda many: run(many, many), lambda many: run(many, 1)
        )


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """One for each policy."""
    import torch

    torch.manual_seed(0)
    for policy, k in ((evo1, 4), (vla_jepa, 8), (eo1, 8), (molmoact2, 8)):
        yield policy(2 if quick else k, 1 if quick else 3)


def main(quick: bool) -> None:
    """Measure and write ``denoise_heads.json``."""
    harness.run("denoise_heads", rows, quick)


if __name__ == "__main__":
    main(harness.parse_quick("denoise_heads", __doc__))
