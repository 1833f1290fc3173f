"""The action transformers of EVO1 and VLA-JEPA on a context that candidates share, against themselves on a repeated one."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot.policies.evo1.flow_matching import BasicTransformerBlock
from lerobot.policies.vla_jepa.action_head import DiT
from torch import Tensor, nn

from keystone_robotics.sample.families.evo1 import denoiser as evo1
from keystone_robotics.sample.families.groot.denoiser import SharedDiT
from keystone_robotics.sample.families.vla_jepa import denoiser as vla_jepa
from keystone_robotics.sample.kit.widen import widen
from tiny.common import seeded, sharpen

WIDTH, TOKENS, CONTEXT = 24, 4, 9
TIMES = torch.tensor([0, 250, 500, 750])
SIZES = st.sampled_from([(1, 1), (1, 4), (1, 16), (3, 1), (3, 4), (3, 16)])


def build_blocks() -> Any:
    with seeded(0):
        blocks = nn.ModuleList([BasicTransformerBlock(WIDTH, 3, 2 * WIDTH) for _ in range(3)])
    sharpen(blocks)
    return blocks.eval().requires_grad_(False)


def build_network() -> Any:
    with seeded(0):
        network = DiT(3, WIDTH // 3, output_dim=7, num_layers=4, dropout=0.2, cross_attention_dim=20)
    sharpen(network)
    return network.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def blocks() -> Any:
    return build_blocks()


@pytest.fixture(scope="module")
def network() -> Any:
    return build_network()


def inputs(batch: int, k: int, seed: int, width: int = WIDTH) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B * K, S, E), a context (B, L, E), and which of it is padding: never all."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(batch * k, TOKENS, WIDTH, generator=generator)
    context = torch.randn(batch, CONTEXT, width, generator=generator)
    padding = torch.rand(batch, CONTEXT, generator=generator) < 0.4
    padding[:, -1] = False
    return tokens, context, padding


def own_blocks(blocks: Any, tokens: Tensor, context: Tensor, time: Tensor, padding: Tensor | None) -> Tensor:
    k, hidden = len(tokens) // len(context), tokens
    for block in blocks:
        hidden = block(hidden, widen(context, k), time.expand(len(tokens), -1), widen(padding, k))
    return hidden


def assert_exact(got: Tensor, expected: Tensor) -> None:
    assert expected.isfinite().all()
    assert float((got - expected).abs().max()) <= 1e-5 * max(1.0, float(expected.abs().max()))


@given(sizes=SIZES, seed=st.integers(0, 2**16), padded=st.booleans())
@settings(max_examples=40, deadline=None)
def test_evo1(blocks: Any, sizes: tuple[int, int], seed: int, padded: bool) -> None:
    tokens, context, padding = inputs(*sizes, seed)
    hidden = padding if padded else None
    time = torch.linspace(-1, 1, WIDTH)
    seen = evo1.prepare(blocks, context, hidden)
    assert seen[0].keys.shape[2] == (int((~padding).sum(1).max()) if padded else CONTEXT), "padding is left out"
    assert_exact(evo1.run_blocks(blocks, seen, tokens, time), own_blocks(blocks, tokens, context, time, hidden))


@given(sizes=SIZES, seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_vla_jepa(network: Any, sizes: tuple[int, int], seed: int) -> None:
    tokens, context, _ = inputs(*sizes, seed, width=20)
    shared = SharedDiT(vla_jepa.as_groot_dit(network), context, TIMES)
    for step, time in enumerate(TIMES):
        assert_exact(shared(tokens, step), network(tokens, widen(context, sizes[1]), time.expand(len(tokens))))


def test_bfloat16_is_as_close_as_it_can_be() -> None:
    blocks, network = build_blocks(), build_network()
    time = torch.linspace(-1, 1, WIDTH)
    tokens, context, padding = inputs(3, 4, seed=2)
    other = inputs(3, 4, seed=2, width=20)[1]

    def outputs(kind: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        own, near, far = tokens.to(kind), context.to(kind), other.to(kind)
        seen = evo1.prepare(blocks, near, padding)
        return [
            (evo1.run_blocks(blocks, seen, own, time.to(kind)), own_blocks(blocks, own, near, time.to(kind), padding)),
            (
                SharedDiT(vla_jepa.as_groot_dit(network), far, TIMES)(own, 1),
                network(own, widen(far, 4), TIMES[1].expand(12)),
            ),
        ]

    exact = [own for _, own in outputs(torch.float32)]
    for module in (blocks, network):
        module.bfloat16()
    for (shared, own), wanted in zip(outputs(torch.bfloat16), exact, strict=True):
        assert shared.dtype == own.dtype == torch.bfloat16
        errors = [float((output.float() - wanted).abs().mean()) for output in (shared, own)]
        assert errors[0] <= 1.2 * errors[1], "less exact than the network itself"


# What is not known is left alone


def change_class(network: Any) -> None:
    network.__class__ = type("BetterDiT", (type(network),), {})


def train(network: Any) -> None:
    network.train()


def look_elsewhere(network: Any) -> None:
    network.transformer_blocks[0].is_cross_attention = False


def normalise_queries(network: Any) -> None:
    network.transformer_blocks[1].attn1.norm_q = nn.LayerNorm(8)


def give_the_norm_weights(network: Any) -> None:
    network.transformer_blocks[0].norm1.norm = nn.LayerNorm(WIDTH)


def give_the_last_norm_weights(network: Any) -> None:
    network.norm_out = nn.LayerNorm(WIDTH)


def drop_a_part(network: Any) -> None:
    del network.proj_out_1


def drop_a_part_of_a_block(network: Any) -> None:
    del network.transformer_blocks[1].norm2


CHANGES = [
    change_class,
    train,
    look_elsewhere,
    normalise_queries,
    give_the_norm_weights,
    give_the_last_norm_weights,
    drop_a_part,
    drop_a_part_of_a_block,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changed_network_of_vla_jepa_is_not_recognised(change: Any) -> None:
    network = build_network()
    assert vla_jepa.recognises(network)
    change(network)
    assert not vla_jepa.recognises(network)


@pytest.mark.parametrize(
    "attention",
    [
        nn.MultiheadAttention(WIDTH, 3),
        nn.MultiheadAttention(WIDTH, 3, batch_first=True, kdim=20, vdim=20),
        nn.MultiheadAttention(WIDTH, 3, batch_first=True, add_bias_kv=True),
        nn.MultiheadAttention(WIDTH, 3, batch_first=True, add_zero_attn=True),
        type("Another", (nn.MultiheadAttention,), {})(WIDTH, 3, batch_first=True),
    ],
    ids=["sequence first", "other widths", "learned keys", "zero key", "another class"],
)
def test_other_attention_in_evo1_is_not_recognised(attention: Any) -> None:
    blocks = build_blocks()
    assert evo1.recognises(blocks)
    blocks[1].attn = attention.eval()
    assert not evo1.recognises(blocks)


def test_evo1_in_training_is_not_recognised() -> None:
    assert not evo1.recognises(build_blocks().train())
