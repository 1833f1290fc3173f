"""Attention to a shared context against plain attention to K copies of it."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from keystone_robotics.sample.kit.cross_attention import KeysValues, compact, cross_attend, split_heads
from keystone_robotics.sample.kit.widen import widen

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2}


def attend_with_copies(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, heads: int, k: int) -> Tensor:
    """What a policy does: every candidate has a context of its own, and a mask for what it may not see."""
    rows = [split_heads(one, heads) for one in (queries, widen(keys, k), widen(values, k))]
    mixed = functional.scaled_dot_product_attention(*rows, attn_mask=widen(mask, k)[:, None, None])
    return mixed.transpose(1, 2).flatten(2)


@given(
    batch=st.integers(1, 3),
    k=st.integers(1, 5),
    length=st.integers(1, 6),
    heads=st.integers(1, 4),
    width=st.sampled_from([1, 3, 8]),
    context=st.integers(1, 9),
    visible=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    kind=st.sampled_from(list(TOLERANCES)),
    seed=st.integers(0, 2**16),
)
@example(batch=3, k=4, length=2, heads=2, width=8, context=7, visible=0.5, kind=torch.float32, seed=0)
@settings(max_examples=150, deadline=None)
def test_shared_context_is_a_context_for_each(
    batch: int,
    k: int,
    length: int,
    heads: int,
    width: int,
    context: int,
    visible: float,
    kind: torch.dtype,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(kind)

    queries = normal(batch * k, length, heads * width)
    keys, values = normal(batch, context, heads * width), normal(batch, context, heads * width)
    mask = torch.rand(batch, context, generator=generator) < visible
    expected = attend_with_copies(queries, keys, values, mask, heads, k)

    (kept_keys, left), (kept_values, _) = compact(keys, mask), compact(values, mask)
    assert kept_keys.shape[1] == max(1, int(mask.sum(dim=1).max()))
    seen = KeysValues(
        split_heads(kept_keys, heads),
        split_heads(kept_values, heads),
        None if left is None else left[:, None, None],
    )
    torch.testing.assert_close(cross_attend(queries, seen), expected, atol=TOLERANCES[kind], rtol=0)


def test_mask_goes_away_where_nothing_is_hidden() -> None:
    tokens = torch.randn(2, 5, 3)
    assert compact(tokens, None)[0] is tokens
    kept, mask = compact(tokens, torch.ones(2, 5, dtype=torch.bool))
    assert kept is tokens
    assert mask is None


def test_rows_keep_their_own_tokens_in_their_order() -> None:
    tokens = torch.arange(10.0).view(2, 5, 1)
    kept, mask = compact(tokens, torch.tensor([[0, 1, 0, 1, 1], [1, 0, 0, 0, 1]]).bool())
    assert kept[0].flatten().tolist() == [1, 3, 4]
    assert kept[1, :2].flatten().tolist() == [5, 9]
    assert mask is not None
    assert mask.tolist() == [[True, True, True], [True, True, False]]
