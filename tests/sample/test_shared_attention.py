"""Attention to a shared context, folded and merged, against the plain one on copies: any shape, mask, head ratio and type."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from keystone.sample.shared import attention
from keystone.sample.shared.attention import (
    Attended,
    Kept,
    attend,
    attend_to_both,
    attend_to_context,
    fold,
    merge,
    own_bias,
    unfold,
)

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}


class Case(NamedTuple):
    """Everything of one attention: queries (B, K, S, H, D), context (B, N, P, D), own keys and values (B, K, S, N, D).

    What is seen of the context, (B, 1 or S, P), and of the own tokens, (S, S).
    """

    queries: Tensor
    context_keys: Tensor
    context_values: Tensor
    keys: Tensor
    values: Tensor
    seen: Tensor
    visible: Tensor
    scale: float


@st.composite
def cases(draw: st.DrawFn, dtypes: Any = tuple(TOLERANCES), sees_context: bool = False) -> Case:
    batch, k, length, key_heads, groups, context, width = (draw(st.integers(1, most)) for most in (3, 4, 6, 3, 4, 9, 8))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from([0.1, 1.0, 10.0]))

    def tensor(*shape: int) -> Tensor:
        return (size * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)

    # True with a probability of its own: contexts that are padding throughout, or not at all, are among them.
    looking = draw(st.sampled_from([1, length]))
    seen = torch.rand(batch, looking, context, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    if sees_context:
        seen[..., 0] = True
    visible = torch.rand(length, length, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    visible |= torch.eye(length, dtype=torch.bool)  # a token sees itself, so that each sees something
    return Case(
        tensor(batch, k, length, key_heads * groups, width),
        tensor(batch, key_heads, context, width),
        tensor(batch, key_heads, context, width),
        tensor(batch, k, length, key_heads, width),
        tensor(batch, k, length, key_heads, width),
        seen,
        visible,
        draw(st.sampled_from([1.0, width**-0.5])),
    )


def plainly(case: Case, own: bool = True) -> Tensor:
    """(B, K * S, H * D) with everything copied for every candidate and every head, in double precision."""
    batch, k, length, heads, _ = case.queries.shape
    groups = heads // case.context_keys.shape[1]

    def all_keys(context: Tensor, of_candidates: Tensor) -> Tensor:  # (B, K, H, M, D)
        copies = context[:, None].expand(batch, k, *context.shape[1:])
        together = torch.cat([copies, of_candidates.transpose(2, 3)], dim=3) if own else copies
        return together.repeat_interleave(groups, dim=2).double()

    mask = case.seen[:, None, None].expand(batch, k, 1, length, -1)
    if own:
        mask = torch.cat([mask, case.visible.expand(batch, k, 1, length, length)], dim=-1)
    keys, values = all_keys(case.context_keys, case.keys), all_keys(case.context_values, case.values)
    scores = case.scale * case.queries.double().transpose(2, 3) @ keys.transpose(-1, -2)
    output = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1) @ values
    return output.transpose(2, 3).reshape(batch, k * length, -1)


def shared(case: Case, own: bool = True) -> Tensor:
    groups = case.queries.shape[3] // case.context_keys.shape[1]
    seen = case.seen
    if seen.shape[1] > 1:  # a row for every query, in the order in which they are folded
        seen = seen.repeat_interleave(groups, dim=1).repeat(1, case.queries.shape[1], 1)
    context = Kept.of(seen, case.queries.dtype).context(case.context_keys, case.context_values)
    queries = fold(case.queries, case.context_keys.shape[1])
    if own:
        bias = own_bias(case.visible, groups, case.queries.dtype)
        output = attend_to_both(queries, context, case.keys, case.values, case.scale, bias)
    else:
        output = attend_to_context(queries, context, case.scale).output
    return unfold(output, case.queries.shape[2])


def assert_equal(case: Case, got: Tensor, expected: Tensor) -> None:
    assert got.dtype == case.queries.dtype
    assert got.shape == expected.shape
    size = max(1.0, *(float(part.abs().max()) for part in (case.values, case.context_values)))
    torch.testing.assert_close(got.double(), expected, rtol=0.0, atol=TOLERANCES[got.dtype] * size)


@given(cases())
def test_context_and_own_tokens(case: Case) -> None:
    assert_equal(case, shared(case), plainly(case))


@given(cases(sees_context=True))
def test_context_alone(case: Case) -> None:
    assert_equal(case, shared(case, own=False), plainly(case, own=False))


@given(cases(dtypes=(torch.float64, torch.float32)))
@settings(max_examples=50)
def test_without_the_fused_kernel(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_fused_on_cpu", None)
        assert_equal(case, shared(case), plainly(case))


@given(cases(dtypes=(torch.float64,)))
@settings(max_examples=50)
def test_gradients(case: Case) -> None:
    gradients = []
    for function in (shared, plainly):
        inputs = [part.clone().requires_grad_() for part in case[:5]]
        output = function(Case(*inputs, *case[5:]))
        gradients.append(torch.autograd.grad(output.square().sum(), inputs))
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@given(cases(dtypes=(torch.float32,)), st.integers(1, 8))
def test_merge_of_parts_is_attention_to_the_whole(case: Case, cut: int) -> None:
    queries, scale = case.queries.flatten(0, 1).transpose(1, 2), case.scale
    groups = queries.shape[1] // case.keys.shape[3]
    keys, values = (
        part.flatten(0, 1).transpose(1, 2).repeat_interleave(groups, 1) for part in (case.keys, case.values)
    )
    cut = min(cut, keys.shape[2])
    whole = attend(queries, keys, values, scale)
    left = attend(queries, keys[:, :, :cut], values[:, :, :cut], scale)
    if cut < keys.shape[2]:
        right = attend(queries, keys[:, :, cut:], values[:, :, cut:], scale)
        assert_equal(case, merge(left, right), whole.output.double())
        assert_equal(case, merge(right, left), whole.output.double())
    else:
        assert_equal(case, left.output, whole.output.double())


def test_a_part_that_sees_nothing_counts_nothing() -> None:
    something = Attended(torch.ones(2, 3), torch.zeros(2))
    nothing = Attended(torch.full((2, 3), 7.0), torch.full((2,), -1e30))
    assert torch.equal(merge(something, nothing), something.output)
    assert torch.equal(merge(nothing, something), something.output)


def test_context_is_not_copied() -> None:
    keys, values = torch.zeros(2, 3, 100, 8), torch.zeros(2, 3, 100, 8)
    context = Kept.of(torch.ones(2, 1, 100, dtype=torch.bool), keys.dtype).context(keys, values)
    assert context.keys is keys
    assert context.values is values
    assert context.bias is None


def test_padding_of_all_rows_is_left_out() -> None:
    real = torch.tensor([[True, False, True, False], [True, False, False, False]])
    keys = torch.arange(4.0)[None, None, :, None].expand(2, 1, 4, 8)
    context = Kept.of(real[:, None], keys.dtype).context(keys, keys)
    assert context.keys[0, 0, :, 0].tolist() == [0.0, 2.0]
    assert (context.bias < 0).tolist() == [[[[False, False]]], [[[False, True]]]]
