"""The shared-context transformer against the one of LeRobot, at tiny size, on random contexts and masks."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot.policies.groot.action_head import cross_attention_dit
from lerobot.policies.groot.action_head.cross_attention_dit import AlternateVLDiT, DiT
from torch import Tensor, nn
from torch.nn import functional

from keystone_robotics.sample.families.groot.denoiser import SharedDiT, attention_targets, recognises
from keystone_robotics.sample.kit.widen import widen
from tiny.common import seeded, sharpen

WIDTH, CONTEXT_WIDTH = 24, 20
TIMES = torch.tensor([0, 250, 500, 750])
SIZES = st.sampled_from([(1, 1), (1, 4), (1, 16), (3, 1), (3, 4), (3, 16)])


def build(kind: type[DiT], **options: Any) -> Any:
    settings = {
        "num_attention_heads": 3,
        "attention_head_dim": WIDTH // 3,
        "output_dim": 7,
        "num_layers": 6,
        "interleave_self_attention": True,
        "cross_attention_dim": CONTEXT_WIDTH,
        "positional_embeddings": None,
    }
    with seeded(0):
        network = kind(**{**settings, **options}).eval().requires_grad_(False)
    sharpen(network)
    return network


def inputs(batch: int, k: int, seed: int, kind: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Tokens (B * K, 4, E), a context (B, 9, E), which of it is visible and which an image; a row may have neither."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(batch * k, 4, WIDTH, generator=generator).to(kind)
    context = torch.randn(batch, 9, CONTEXT_WIDTH, generator=generator).to(kind)
    visible, image = (torch.rand(batch, 9, generator=generator) < share for share in (0.8, 0.5))
    return tokens, context, visible, image


def assert_exact(got: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert expected.isfinite().all()
    difference = float((got - expected).abs().max())
    assert difference <= tolerance * max(1.0, float(expected.abs().max()))


@pytest.fixture(scope="module")
def alternating() -> Any:
    return build(AlternateVLDiT)


@given(sizes=SIZES, seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_text_and_images_in_turn(alternating: Any, sizes: tuple[int, int], seed: int) -> None:
    tokens, context, visible, image = inputs(*sizes, seed)
    shared = SharedDiT(alternating, context, TIMES, visible, image)
    for step, time in enumerate(TIMES):
        expected = alternating(
            tokens,
            widen(context, sizes[1]),
            time.expand(len(tokens)),
            image_mask=widen(image, sizes[1]),
            backbone_attention_mask=widen(visible, sizes[1]),
        )
        assert_exact(shared(tokens, step), expected)


@pytest.mark.parametrize("interleaves", [True, False])
@pytest.mark.parametrize("positions", [None, "sinusoidal"])
@pytest.mark.parametrize("sizes", [(1, 4), (3, 4)])
def test_whole_context(interleaves: bool, positions: str | None, sizes: tuple[int, int]) -> None:
    network = build(DiT, interleave_self_attention=interleaves, positional_embeddings=positions)
    tokens, context, _, _ = inputs(*sizes, seed=1)
    expected = network(tokens, widen(context, sizes[1]), TIMES[1].expand(len(tokens)))
    assert_exact(SharedDiT(network, context, TIMES)(tokens, 1), expected)


@pytest.mark.parametrize("interleaves", [True, False])
def test_masked_context_of_starvla(interleaves: bool) -> None:
    """StarVLA's copy differs in its forward: a mask for all blocks, and a switch that may overrule the config."""
    network = build(DiT, interleave_self_attention=interleaves)
    network.register_to_config(interleave_self_attention=not interleaves)
    network._interleave_self_attention = interleaves
    tokens, context, visible, _ = inputs(3, 4, seed=1)
    time = network.timestep_encoder(TIMES[2].expand(len(tokens)))
    hidden = tokens
    for index, block in enumerate(network.transformer_blocks):
        own = interleaves and index % 2
        hidden = block(
            hidden,
            encoder_hidden_states=None if own else widen(context, 4),
            encoder_attention_mask=None if own else widen(visible, 4),
            temb=time,
        )
    shift, scale = network.proj_out_1(functional.silu(time)).chunk(2, dim=1)
    expected = network.proj_out_2(network.norm_out(hidden) * (1 + scale[:, None]) + shift[:, None])
    assert_exact(SharedDiT(network, context, TIMES, visible)(tokens, 2), expected)


def test_bfloat16_is_as_close_as_it_can_be() -> None:
    network = build(AlternateVLDiT)
    tokens, context, visible, image = inputs(3, 4, seed=2)
    exact = SharedDiT(network, context, TIMES, visible, image)(tokens, 1)
    network.bfloat16()
    rounded, half = tokens.bfloat16(), context.bfloat16()
    own = network(
        rounded,
        widen(half, 4),
        TIMES[1].expand(12),
        image_mask=widen(image, 4),
        backbone_attention_mask=widen(visible, 4),
    )
    shared = SharedDiT(network, half, TIMES, visible, image)(rounded, 1)
    assert shared.dtype == torch.bfloat16
    errors = [float((output.float() - exact).abs().mean()) for output in (shared, own)]
    assert errors[0] <= 1.2 * errors[1], "less exact than the network itself"


def test_layout() -> None:
    network = build(AlternateVLDiT, num_layers=8)
    assert attention_targets(network) == ["text", "self", "images", "self"] * 2
    network.attend_text_every_n_blocks = 3
    assert attention_targets(network)[::2] == ["text", "images", "images", "text"]
    assert attention_targets(build(DiT, interleave_self_attention=False)) == ["context"] * 6


def test_context_is_projected_once_and_only_where_it_is_seen(alternating: Any) -> None:
    _, context, _, image = inputs(1, 4, seed=3)
    visible = torch.ones_like(image)
    projected: list[int] = []
    hooks = [
        block.attn1.to_k.register_forward_pre_hook(lambda _, given: projected.append(given[0].shape[1]))
        for block in alternating.transformer_blocks[::2]
    ]
    try:
        SharedDiT(alternating, context, TIMES, visible, image)
    finally:
        for hook in hooks:
            hook.remove()
    images, text = int(image.sum()), int((~image).sum())
    assert images != text
    assert projected == [text, images, text]


# What is not known is left alone


def train(network: Any) -> None:
    network.train()


def subclass(network: Any) -> None:
    network.__class__ = type("BetterDiT", (type(network),), {})


def normalise_queries(network: Any) -> None:
    network.transformer_blocks[0].attn1.norm_q = nn.LayerNorm(8)


def replace_processor(network: Any) -> None:
    network.transformer_blocks[0].attn1.processor = lambda *args: None


def rescale(network: Any) -> None:
    network.transformer_blocks[2].attn1.rescale_output_factor = 2.0


def drop_a_part(network: Any) -> None:
    del network.norm_out


def give_the_norm_weights(network: Any) -> None:
    network.transformer_blocks[0].norm1.norm = nn.LayerNorm(WIDTH)


CHANGES = [
    train,
    subclass,
    normalise_queries,
    replace_processor,
    rescale,
    drop_a_part,
    give_the_norm_weights,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changed_network_is_not_recognised(change: Any) -> None:
    network = build(AlternateVLDiT)
    assert recognises(network)
    change(network)
    assert not recognises(network)


def test_network_without_time_in_its_norms_is_not_recognised() -> None:
    assert not recognises(build(DiT, norm_type="layer_norm"))


def test_forced_attention_backend_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(DiT)
    for forced in (False, True):
        monkeypatch.setattr(cross_attention_dit, "_should_force_math_sdpa", lambda forced=forced: forced, raising=False)
        assert recognises(network) is not forced


@pytest.mark.parametrize("thing", [None, nn.Linear(2, 2), "DiT"])
def test_other_things_are_not_recognised(thing: Any) -> None:
    assert not recognises(thing)
