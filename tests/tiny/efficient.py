"""PyTorch's memory-efficient attention, which runs on CUDA alone, computed plainly: what a GPU would run, on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from keystone_robotics.sample.kit import attention

from .common import patched


@torch.library.custom_op("keystone_tests::efficient_attention", mutates_args=())
def efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool, *, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`torch.ops.aten._scaled_dot_product_efficient_attention`: one operation for who counts them, with all its habits.

    The log-sum-exp is in float32 and filled up to a multiple of 32 queries, here with what must not be used; the output's
    heads lie inside its queries.
    """
    assert attn_bias is None
    assert compute_log_sumexp
    assert len({query.dtype, key.dtype, value.dtype}) == 1
    assert query.dtype in (torch.float32, torch.float16, torch.bfloat16)
    assert all(part.stride(-1) == 1 for part in (query, key, value))
    scores = scale * query.double() @ key.double().transpose(-1, -2)
    output = (scores.softmax(dim=-1) @ value.double()).to(query.dtype)
    weight = functional.pad(scores.logsumexp(dim=-1).float(), (0, -query.shape[2] % 32), value=torch.nan)
    seed, offset = (torch.zeros((), dtype=torch.int64) for _ in range(2))
    return output.transpose(1, 2).contiguous().transpose(1, 2), weight, seed, offset


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Within it, attention on a CPU goes the way that it goes on a GPU."""
    with patched(attention, _fused_on_cuda=efficient_attention, _FUSED={"cpu": attention._FUSED["cuda"]}):
        yield
