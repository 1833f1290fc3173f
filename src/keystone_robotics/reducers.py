"""For engines that draw the candidates themselves (SGLang, vLLM-Omni): K candidates in, one chunk out, and noise for them.

No torch module, no policy, no state. An engine draws N candidates of each request from `candidate_noise` and reduces them::

    noise = candidate_noise(seed, n, (horizon, dims))      # candidate j is the same for every n
    chunk = reduce(denoise(noise), "core-mean", seed)      # (T, D)

`check_engine` is the contract that makes results with N candidates comparable with those of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.errors import KeystoneError
from keystone_robotics.select import RULES, ActionSpace, select
from keystone_robotics.spec import Spec

__all__ = ["REDUCERS", "candidate_noise", "check_engine", "reduce"]

#: Names of the reducers: all rules that need nothing but the candidates.
REDUCERS = tuple(sorted(name for name, rule in RULES.items() if not rule.remembers))


def reduce(candidates: Any, spec: Spec | str = "core-mean", seed: int = 0) -> Any:
    """The chunk to execute.

    Args:
        candidates: (K, T, D) or (B, K, T, D), numpy or torch on any device.
        spec: the rule with its parameters, metric and action space (``"core-mean"``, ``"medoid:metric=l1"``). What a Spec says
            about drawing (k, steps, temperature) is the engine's.
        seed: for rules that draw random numbers.

    Returns:
        (T, D) or (B, T, D), of the type, device and dtype of the candidates.

    >>> reduce(np.stack([np.zeros((4, 2)), np.full((4, 2), 0.1), np.full((4, 2), 9.0)]), "medoid")[0]
    array([0.1, 0.1])
    """
    spec = Spec.of(spec)
    rule = spec.bind()
    if rule.remembers:
        raise KeystoneError(
            f"rule {rule.name} looks back at the previous chunk, which an engine does not have: see REDUCERS"
        )
    space = spec.action_space()
    steps = spec.execute
    if steps is not None and (space is None or space.steps is None):
        space = replace(space or ActionSpace(), steps=range(min(steps, candidates.shape[-2])))
    return select(candidates, rule, space, seed, metric=spec.metric).chunk


def candidate_noise(seed: int, n: int, shape: Sequence[int]) -> NDArray[np.float32]:
    """(N, ...) standard normal noise. Candidate j depends on the seed and j alone: not on N, not on the rest of a batch.

    >>> bool((candidate_noise(7, 16, (50, 32))[:4] == candidate_noise(7, 4, (50, 32))).all())
    True
    """
    draws = [np.random.Generator(np.random.Philox(key=[seed % 2**64, j])) for j in range(n)]
    return np.stack([draw.standard_normal(tuple(shape), np.float32) for draw in draws])


def check_engine(
    draw: Callable[[int, int], Any], seeds: Sequence[int] = (0, 1, 2), numbers: Sequence[int] = (1, 2, 4, 16)
) -> None:
    """The contract of an engine: candidate j of a request is the same however many are drawn, bit for bit on a CPU.

    Candidate 0 of N is then the sample of N = 1, so that N candidates can be compared with one under the same noise.

    Args:
        draw: ``draw(seed, n)`` gives the engine's (N, T, D) candidates of one fixed observation.
        seeds: of requests to try.
        numbers: of candidates to try.

    Raises:
        AssertionError: with the seed, N and the candidate that differs.

    >>> check_engine(lambda seed, n: np.tanh(candidate_noise(seed, n, (8, 2))))
    >>> check_engine(lambda seed, n: np.random.RandomState(seed).randn(8, n, 2).swapaxes(0, 1))
    Traceback (most recent call last):
    AssertionError: seed 0: candidate 0 of 1 is not candidate 0 of 16, largest difference ...
    """
    most = max(numbers)
    for seed in seeds:
        whole = _host(draw(seed, most))
        _check_count(seed, whole, most)
        for n in numbers:
            fewer = _host(draw(seed, n))
            _check_count(seed, fewer, n)
            for j in range(n):
                if fewer[j].tobytes() != whole[j].tobytes():
                    largest = float(np.abs(fewer[j].astype(np.float64) - whole[j].astype(np.float64)).max())
                    raise AssertionError(
                        f"seed {seed}: candidate {j} of {n} is not candidate {j} of {most}, largest difference {largest:.3g}"
                    )
        first = _host(reduce(draw(seed, most), "first"))
        if first.tobytes() != whole[0].tobytes():
            raise AssertionError(f"seed {seed}: the reducer `first` does not return candidate 0")


def _check_count(seed: int, candidates: NDArray[Any], asked: int) -> None:
    if len(candidates) != asked:
        raise AssertionError(f"seed {seed}: {len(candidates)} candidates were drawn, asked for {asked}")


def _host(value: Any) -> NDArray[Any]:
    host: NDArray[Any] = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    return host
