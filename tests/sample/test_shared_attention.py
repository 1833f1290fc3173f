"""Attention to a shared context, folded and merged, against the plain one on copies: any shape, mask, head ratio and type."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from keystone_robotics.sample.kit import attention
from keystone_robotics.sample.kit.attention import (
    PartialAttention,
    VisibleTokens,
    attend,
    attend_to_both,
    attend_to_context,
    fold,
    merge,
    self_bias,
    unfold,
)
from tiny.common import patched
from tiny.efficient import as_on_cuda, efficient_attention
from tiny.shapes import Shapes, Waits

#: Of the values' size. Those of the coarse types are some roundings of a result; what is summed in them is summed in float32.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


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
    context = VisibleTokens.of(seen, case.queries.dtype).context(case.context_keys, case.context_values)
    queries = fold(case.queries, case.context_keys.shape[1])
    if own:
        bias = self_bias(case.visible, groups, case.queries.dtype)
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


@contextmanager
def unfused() -> Iterator[None]:
    with patched(attention, _FUSED={}):
        yield


@given(cases())
@settings(max_examples=50)
def test_without_a_fused_kernel(case: Case) -> None:
    with unfused():
        assert_equal(case, shared(case), plainly(case))


@given(cases())
def test_on_the_way_of_a_gpu(case: Case) -> None:
    with as_on_cuda():
        assert_equal(case, shared(case), plainly(case))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1.0, 3.0])
@pytest.mark.parametrize("autocast", [False, True])
def test_scores_are_not_rounded(dtype: torch.dtype, size: float, autocast: bool) -> None:
    """Scores of several tens, one of which decides: to round them to a coarse type moves its weight by much."""
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (
        (size * torch.randn(2, 3, 64, 32, generator=generator, dtype=torch.float64)).to(dtype) for _ in range(3)
    )
    scores = 32**-0.5 * queries.double() @ keys.double().transpose(-1, -2)
    rounding = torch.finfo(dtype).eps * float(values.abs().max())
    for way in (unfused, as_on_cuda):
        with way(), torch.autocast("cpu", dtype, enabled=autocast):
            got = attend(queries, keys, values, 32**-0.5)
        assert got.output.dtype == dtype
        assert got.logsumexp.dtype == torch.float32
        assert (got.output.double() - scores.softmax(dim=-1) @ values.double()).abs().max() < rounding
        torch.testing.assert_close(got.logsumexp.double(), scores.logsumexp(dim=-1), rtol=1e-5, atol=1e-5)
    # The kernel of the CPU is PyTorch's: it rounds weights before it sums.
    fused = attend(queries, keys, values, 32**-0.5)
    assert (fused.output.double() - scores.softmax(dim=-1) @ values.double()).abs().max() < 2 * rounding


@pytest.mark.parametrize("queries", [32, 37])
def test_kernel_of_a_gpu_gives_the_shapes_that_its_stand_in_has(queries: int) -> None:
    """By what PyTorch knows of the kernel without a GPU. Its heads lie inside its queries, which the stand-in imitates."""
    shapes = [(2, 3, queries, 16), (2, 3, 11, 16), (2, 3, 11, 16)]
    expected = efficient_attention(*(torch.zeros(shape) for shape in shapes), None, True, scale=0.25)
    with FakeTensorMode():
        parts = [torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
        kernel = attention._fused_on_cuda(*parts, None, True, scale=0.25)
        assert [(part.shape, part.stride()) for part in kernel] == [(part.shape, part.stride()) for part in expected]
        assert kernel[1].dtype == expected[1].dtype
        with Shapes() as made:
            got = attend(*parts, 0.25)
    assert (got.output.shape, got.logsumexp.shape) == ((2, 3, queries, 16), (2, 3, queries))
    assert (2, 3, queries, 11) not in made.seen, "scores are written to memory"


def test_a_gpu_is_asked_for_its_kernel_only_where_it_can_do_it() -> None:
    with FakeTensorMode(), Shapes() as made:
        parts = [torch.empty(2, 3, 7, 16, device="cuda") for _ in range(3)]
        attend(*parts, 0.25, bias=torch.zeros(7, 7, device="cuda"))
        attend(*(part.double() for part in parts), 0.25)
        attend(parts[0].requires_grad_(), *parts[1:], 0.25)
    assert (2, 3, 32) not in made.seen
    assert (2, 3, 7, 7) in made.seen


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
    something = PartialAttention(torch.ones(2, 3), torch.zeros(2))
    nothing = PartialAttention(torch.full((2, 3), 7.0), torch.full((2,), -1e30))
    assert torch.equal(merge(something, nothing), something.output)
    assert torch.equal(merge(nothing, something), something.output)


def test_context_is_not_copied() -> None:
    keys, values = torch.zeros(2, 3, 100, 8), torch.zeros(2, 3, 100, 8)
    context = VisibleTokens.of(torch.ones(2, 1, 100, dtype=torch.bool), keys.dtype).context(keys, values)
    assert context.keys is keys
    assert context.values is values
    assert context.bias is None


def test_padding_of_all_rows_is_left_out() -> None:
    real = torch.tensor([[True, False, True, False], [True, False, False, False]])
    keys = torch.arange(4.0)[None, None, :, None].expand(2, 1, 4, 8)
    context = VisibleTokens.of(real[:, None], keys.dtype).context(keys, keys)
    assert context.keys[0, 0, :, 0].tolist() == [0.0, 2.0]
    assert (context.bias < 0).tolist() == [[[[False, False]]], [[[False, True]]]]


@given(cases())
def test_what_is_kept_is_asked_once(case: Case) -> None:
    with Waits() as waits:
        VisibleTokens.of(case.seen, case.queries.dtype)
    assert waits.count == 1
