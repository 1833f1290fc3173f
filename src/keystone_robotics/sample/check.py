"""The proof that K-wide sampling is what it claims to be, made on the live policy."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.noise import GivenNoise, aside
from keystone_robotics.sample.shadow import shadowed

#: Largest difference to the policy's own single calls, relative to the size of the action dimension (at least 1).
TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}

#: In coarse types what is wrong could pass for rounding. A fast path that differs by more than this must not differ by more
#: than `ALIKE` times what the plain path does, which may show how large rounding errors are with this policy, there. (On a CPU
#: it does not: rows of a larger batch are computed as in a smaller one.)
CLEARLY_ROUNDING = {torch.bfloat16: 2e-2, torch.float16: 4e-3}
ALIKE = 2.0

#: Candidates closer than this, relative to the size of the actions, are one candidate and its rounding errors.
SAME = 1e-5


@dataclass(frozen=True)
class Finding:
    """What the check found on one path; ``problem`` is empty if all is well.

    Attributes:
        k: candidates that were drawn.
        difference: the largest to the policy's own single calls.
        compared: candidates that were compared with such calls.
        calls: of the encoders while the candidates were drawn.
        problem: what is wrong.
        path: on which the candidates were drawn.
        relative: the largest difference relative to the size of its action dimension (at least 1).
        doubtful: it is more than what is rounding for certain in the coarsest type that takes part.

    >>> print(Finding(16, 3e-7, 2, {"embed_prefix": 1}))
    16 candidates, largest difference to 2 single calls 3.0e-07, encoders called {'embed_prefix': 1}, plain path
    """

    k: int
    difference: float
    compared: int
    calls: dict[str, int]
    problem: str = ""
    path: str = "plain"
    relative: float = 0.0
    doubtful: bool = False

    def __str__(self) -> str:
        inside = {name: count for name, count in self.calls.items() if count}
        encoded = f"encoders called {inside}" if inside else "the context came encoded"
        return (
            f"{self.k} candidates, largest difference to {self.compared} single calls {self.difference:.1e}, {encoded}, "
            f"{self.path} path"
        )


def verify(
    original: Callable[[], Tensor],
    candidates: Tensor,
    noises: Sequence[Tensor],
    calls: dict[str, int],
    encoders: Sequence[tuple[Any, str]],
    uniform: bool = False,
    compare: Sequence[int] | None = None,
    precision: torch.dtype | None = None,
    distinct: bool = True,
    path: str = "plain",
) -> Finding:
    """Compare K-wide candidates with the policy's own calls under the same noise.

    Args:
        original: the policy's own method; draws noise of B rows.
        candidates: (B, K, T, D) drawn K wide.
        noises: (B * K, ...) the initial noise, then whatever the sampler drew on its way.
        calls: how often each encoder was called while the candidates were drawn.
        encoders: the methods that encode the context.
        uniform: the initial noise is uniform on [-1, 1], which the policy makes from draws on [0, 1].
        compare: which candidates to compare; default the first two and the last.
        distinct: candidates that are all equal are a problem (not so at temperature 0).
        precision: the coarsest type the policy computes in; default that of the noise.
        path: on which the candidates were drawn.
    """
    candidates = candidates.detach()  # a policy may be asked with gradients on
    batch, k = candidates.shape[:2]
    # Two neighbours, because with rows in the wrong order (B after B instead of K after K) the first and the last are right by
    # chance for many B and K.
    chosen = sorted({0, min(1, k - 1), k - 1}) if compare is None else list(compare)
    dtype = precision or (noises[0].dtype if noises else candidates.dtype)
    differences = torch.zeros(candidates.shape[-1], device="cpu")  # by dimension
    sizes = torch.ones_like(differences)

    def found(problem: str = "") -> Finding:
        relative = float((differences / sizes).max())
        doubtful = relative > CLEARLY_ROUNDING.get(dtype, math.inf)
        return Finding(k, float(differences.max()), len(chosen), calls, problem, path, relative, doubtful)

    equal = SAME * float(_sizes(candidates).max())
    if distinct and k > 1 and (_alike(candidates, equal) or (noises and _alike(noises[0].reshape(batch, k, -1), 0.0))):
        return found(
            "all candidates are equal: the policy draws no noise through torch, or a fixed seed gives each the same"
        )
    with aside(candidates.device):
        for j in chosen:
            rows = [noise.reshape(batch, k, *noise.shape[1:])[:, j] for noise in noises]
            if uniform:
                rows[0] = (rows[0] + 1) / 2
            with count_calls(encoders) as single, GivenNoise(*rows) as given:
                expected = original().detach()
            if given.left:
                return found(
                    f"the policy drew noise of shapes {given.drawn}, expected {[tuple(row.shape) for row in rows]}: "
                    "its sampler has changed upstream, or the adapter's seam is wrong"
                )
            if expected.shape != candidates[:, j].shape:
                return found(f"a single call returns {tuple(expected.shape)}, expected {tuple(candidates[:, j].shape)}")
            # By dimension: those that only pad the actions can be of any size, and would excuse errors in the others.
            sizes = torch.maximum(sizes, _sizes(expected))
            differences = torch.maximum(differences, _largest_differences(expected, candidates[:, j]))
            for name, count in calls.items():
                if count > single[name]:
                    return found(f"{name} was called {count} times for {k} candidates, {single[name]} for one")
    tolerance = TOLERANCES.get(dtype, 1e-4)
    worst = int((differences / sizes).argmax())
    if differences[worst] > tolerance * sizes[worst]:
        return found(
            f"candidates differ from single calls under the same noise by {differences[worst]:.1e} in action dimension {worst} "
            f"(there up to {sizes[worst]:.1f}, allowed {tolerance * sizes[worst]:.1e}): "
            "the adapter's seam is wrong, or the sampler has changed upstream"
        )
    return found()


def compare_with_plain(fast: Finding, plain: Finding) -> Finding:
    """What was found on the fast path, with a problem if it is further from single calls than rounding errors explain.

    >>> plain, close, far = (Finding(4, 0.1, 3, {}, relative=relative) for relative in (0.007, 0.01, 0.02))
    >>> compare_with_plain(close, plain).problem
    ''
    >>> compare_with_plain(far, plain).problem
    'candidates differ from single calls by 2.0e-02 of their size, those of the plain path by 7.0e-03'
    """
    if fast.relative <= ALIKE * plain.relative:
        return fast
    return dataclasses.replace(
        fast,
        problem=f"candidates differ from single calls by {fast.relative:.1e} of their size, "
        f"those of the plain path by {plain.relative:.1e}",
    )


def _alike(candidates: Tensor, tolerance: float) -> bool:
    """Whether all candidates (B, K, ...) of all rows are the same."""
    return bool(((candidates - candidates[:, :1]).abs() <= tolerance).all())


def _sizes(chunks: Tensor) -> Tensor:
    """The largest number in each of the D last dimensions, at least 1, what is not finite aside: (D,) on the host."""
    finite = chunks.float().abs().nan_to_num(nan=0.0, posinf=0.0)
    return finite.reshape(-1, chunks.shape[-1]).amax(0).clamp(min=1.0).cpu()


def _largest_differences(first: Tensor, second: Tensor) -> Tensor:
    """Of each of the D last dimensions: (D,) on the host. Infinite where only one of the two is a number.

    >>> nan = float("nan")
    >>> _largest_differences(torch.tensor([[1.0, nan]]), torch.tensor([[3.0, nan]]))
    tensor([2., 0.])
    >>> _largest_differences(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, nan]]))
    tensor([0., inf])
    """
    first, second = first.float(), second.float()
    same = (first == second) | (first.isnan() & second.isnan())
    apart = (first - second).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
    return apart.reshape(-1, apart.shape[-1]).amax(0).cpu()


@contextlib.contextmanager
def count_calls(encoders: Sequence[tuple[Any, str]]) -> Iterator[dict[str, int]]:
    """Count the calls of methods within the block and in this thread, by method name."""
    calls: dict[str, int] = {name: 0 for _, name in encoders}
    thread = threading.get_ident()

    def counting(method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                calls[name] += 1
            return method(*args, **kwargs)

        return counted

    with shadowed(encoders, counting):
        yield calls
