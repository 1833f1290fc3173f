"""Repeat a context for every candidate, and find the candidate that a chunk came from."""

from __future__ import annotations

from typing import Any

import torch


def widen(value: Any, k: int) -> Any:
    """Repeat every row of a tensor K times, adjacent: row b becomes rows b*K to b*K + K - 1.

    With one row the result is a view of the same memory. Values other than tensors are returned unchanged.

    >>> widen(torch.tensor([[1, 2], [3, 4]]), 2).tolist()
    [[1, 2], [1, 2], [3, 4], [3, 4]]
    >>> one = torch.zeros(1, 1000)
    >>> widen(one, 16).untyped_storage().data_ptr() == one.untyped_storage().data_ptr()
    True
    """
    if not isinstance(value, torch.Tensor):
        return value
    rows = value.shape[0]
    return value.unsqueeze(1).expand(rows, k, *value.shape[1:]).reshape(rows * k, *value.shape[1:])


def nearest_to(candidates: torch.Tensor, chunk: torch.Tensor) -> int:
    """Which of the candidates (K, T, D) is nearest to a chunk (T, D); never one that is not finite, if another is.

    >>> nearest_to(torch.tensor([1.0, torch.nan, 3.0]).view(3, 1, 1), torch.tensor([[2.5]]))
    2
    """
    return int((candidates - chunk).flatten(1).norm(dim=1).nan_to_num(nan=torch.inf).argmin())
