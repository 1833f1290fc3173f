"""One compiled step for contexts of every length."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


def lengths_vary(contexts: Iterable[tuple[Tensor, Tensor, Tensor | None]]) -> None:
    """Tell the compiler that these have another length in other rounds: every instruction has as many tokens as it has.

    Without that, it takes the length of the first round for the length of all, and compiles again when another instruction
    comes, in the middle of an episode.

    Args:
        contexts: keys and values (B, N, P, D), and a mask or bias (..., P) or None; P is what varies.
    """
    from torch._dynamo import maybe_mark_dynamic  # which takes a second to import, and is needed only to compile

    for keys, values, mask in contexts:
        maybe_mark_dynamic(keys, 2)
        maybe_mark_dynamic(values, 2)
        if mask is not None:
            maybe_mark_dynamic(mask, mask.ndim - 1)
