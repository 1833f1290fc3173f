"""The self-check: K-wide sampling equals the policy's own single calls, verified on the live policy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from keystone_robotics.sample.noise import FixedNoise, preserve_rng
from keystone_robotics.sample.request import SampleRequest
from keystone_robotics.sample.timer import Mark, RoundTimer

#: Largest difference to the policy's own single calls, relative to the size of the action dimension (at least 1).
TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}

#: In coarse dtypes an error could pass as rounding. A fast path that differs by more than this may differ by at most
#: `MAX_RATIO_TO_PLAIN` times the difference of the plain path, which estimates the rounding errors of this policy on this
#: device. (Not on a CPU, where a row does not depend on the batch size.)
ROUNDING_BOUND = {torch.bfloat16: 2e-2, torch.float16: 4e-3}
MAX_RATIO_TO_PLAIN = 2.0

#: Candidates closer than this, relative to the size of the actions, count as equal.
EQUAL_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Finding:
    """The result of the check on one path; ``problem`` is empty if it passed.

    Attributes:
        k: candidates drawn.
        difference: largest difference to the policy's own single calls.
        compared: candidates compared with single calls.
        calls: encoder calls while drawing.
        problem: why it failed.
        path: on which the candidates were drawn.
        relative: largest difference relative to the size of its action dimension (at least 1).
        doubtful: larger than `ROUNDING_BOUND` of the coarsest dtype.

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
        encoded = f"encoders called {inside}, " if inside else "the context came encoded, " if self.calls else ""
        return (
            f"{self.k} candidates, largest difference to {self.compared} single calls {self.difference:.1e}, {encoded}"
            f"{self.path} path"
        )


@dataclass(frozen=True)
class DrawTrace:
    """The candidates of one round, and the noise they were drawn from.

    Attributes:
        candidates: (B, K, T, D).
        noises: (K, ...) the initial noise, then the sampler's later draws, each as the sampler draws it for one candidate.
        encoder_calls: number of calls of each encoder.
        path: on which the candidates were drawn: "fast" or "plain".
        sampled: when sampling finished.
    """

    candidates: Tensor
    noises: tuple[Tensor, ...]
    encoder_calls: Mapping[str, int]
    path: str
    sampled: Mark

    def followed_by(self, rest: DrawTrace) -> DrawTrace:
        """These candidates and further ones of the same round. The noise is dropped: only the self-check needs it."""
        return DrawTrace(
            torch.cat([self.candidates, rest.candidates], dim=1),
            (),
            {name: count + rest.encoder_calls.get(name, 0) for name, count in self.encoder_calls.items()},
            self.path if self.path == rest.path else "plain",
            rest.sampled,
        )


@dataclass(frozen=True)
class CheckSettings:
    """How candidates are compared with single calls.

    Attributes:
        every: compare all candidates; by default the first two and the last.
        dtype: the coarsest that the policy computes in; sets the tolerance.
        distinct: fail if all candidates are equal (False at temperature 0).
    """

    every: bool
    dtype: torch.dtype
    distinct: bool


def verify(request: SampleRequest, trace: DrawTrace, how: CheckSettings, timer: RoundTimer) -> Finding:
    """Compare K-wide candidates with the policy's own calls under the same noise."""
    candidates = trace.candidates.detach()  # a policy may be called with gradients on
    k = candidates.shape[1]
    differences = torch.zeros(candidates.shape[-1], device="cpu")  # by dimension
    sizes = torch.ones_like(differences)
    # Two adjacent ones: if rows are in the wrong order (batch-minor instead of candidate-minor), the first and the last are
    # still correct for many B and K.
    compared = list(range(k)) if how.every else sorted({0, min(1, k - 1), k - 1})

    def found(problem: str = "") -> Finding:
        relative = float((differences / sizes).max())
        doubtful = relative > ROUNDING_BOUND.get(how.dtype, math.inf)
        calls = dict(trace.encoder_calls)
        return Finding(k, float(differences.max()), len(compared), calls, problem, trace.path, relative, doubtful)

    if how.distinct and k > 1 and _all_equal(trace):
        return found(
            "all candidates are equal: the policy draws no noise through torch (in JAX: from the random key among its "
            "arguments), or a fixed seed gives each the same"
        )
    with preserve_rng(candidates.device):
        for j in compared:
            rows = [noise[j] for noise in trace.noises]
            if request.noise is not None and request.noise.uniform:  # the policy maps draws from [0, 1]
                rows[0] = (rows[0] + 1) / 2
            with timer.count(list(trace.encoder_calls)) as single, FixedNoise(*rows) as fixed:
                expected = request.chunk(request.single()).detach()
            if fixed.left:
                return found(
                    f"the policy drew noise of shapes {fixed.drawn}, expected {[tuple(row.shape) for row in rows]}: "
                    "its sampler has changed upstream, or the adapter overrides the wrong method"
                )
            if expected.shape != candidates[:, j].shape:
                return found(f"a single call returns {tuple(expected.shape)}, expected {tuple(candidates[:, j].shape)}")
            # By dimension: padding dimensions can have any size, and would hide errors in the others.
            sizes = torch.maximum(sizes, _sizes(expected))
            differences = torch.maximum(differences, _largest_differences(expected, candidates[:, j]))
            for name, count in trace.encoder_calls.items():
                if count > single[name]:
                    return found(f"{name} was called {count} times for {k} candidates, {single[name]} for one")
    tolerance = TOLERANCES.get(how.dtype, 1e-4)
    worst = int((differences / sizes).argmax())
    if differences[worst] > tolerance * sizes[worst]:
        return found(
            f"candidates differ from single calls under the same noise by {differences[worst]:.1e} in action dimension {worst} "
            f"(there up to {sizes[worst]:.1f}, allowed {tolerance * sizes[worst]:.1e}): "
            "the adapter overrides the wrong method, or the sampler has changed upstream"
        )
    return found()


def compare_with_plain(fast: Finding, plain: Finding) -> Finding:
    """The finding on the fast path, with a problem if its difference exceeds the rounding errors seen on the plain path.

    >>> plain, close, far = (Finding(4, 0.1, 3, {}, relative=relative) for relative in (0.007, 0.01, 0.02))
    >>> compare_with_plain(close, plain).problem
    ''
    >>> compare_with_plain(far, plain).problem
    'candidates differ from single calls by 2.0e-02 of their size, those of the plain path by 7.0e-03'
    """
    if fast.relative <= MAX_RATIO_TO_PLAIN * plain.relative:
        return fast
    return dataclasses.replace(
        fast,
        problem=f"candidates differ from single calls by {fast.relative:.1e} of their size, "
        f"those of the plain path by {plain.relative:.1e}",
    )


def _all_equal(trace: DrawTrace) -> bool:
    """Whether all candidates of all rows are the same, or were drawn from the same noise."""
    candidates = trace.candidates.detach()
    tolerance = EQUAL_TOLERANCE * float(_sizes(candidates).max())
    if bool(((candidates - candidates[:, :1]).abs() <= tolerance).all()):
        return True
    return not trace.noises or bool((trace.noises[0] == trace.noises[0][:1]).all())


def _sizes(chunks: Tensor) -> Tensor:
    """The largest finite magnitude in each of the D last dimensions, at least 1: (D,) on the host."""
    finite = chunks.float().abs().nan_to_num(nan=0.0, posinf=0.0)
    return finite.reshape(-1, chunks.shape[-1]).amax(0).clamp(min=1.0).cpu()


def _largest_differences(first: Tensor, second: Tensor) -> Tensor:
    """For each of the D last dimensions: (D,) on the host. Infinite where only one of the two is a number.

    >>> nan = float("nan")
    >>> _largest_differences(torch.tensor([[1.0, nan]]), torch.tensor([[3.0, nan]]))
    tensor([2., 0.])
    >>> _largest_differences(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, nan]]))
    tensor([0., inf])
    """
    first, second = first.float(), second.float()
    same = (first == second) | (first.isnan() & second.isnan())
    difference = (first - second).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
    return difference.reshape(-1, difference.shape[-1]).amax(0).cpu()
