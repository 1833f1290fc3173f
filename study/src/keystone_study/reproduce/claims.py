"""What the main study claims, each with an interval over trained policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keystone_robotics.spec import RECOMMENDED_RULE
from keystone_study.reproduce.grids import AS_IT_IS, FEW, PAPER
from keystone_study.reproduce.main import CANDIDATES, FREE, NO_SLOWER, MainResult

RECOMMENDED = f"{RECOMMENDED_RULE}:k=16,{FEW}"


@dataclass(frozen=True)
class Claim:
    """A difference of success rates, pooled over trained policies.

    Attributes:
        text: what is compared.
        value: mean over policies, as a share.
        interval: Student's 95 % interval with policies as units, so that it covers training, tasks and states.
        positive: number of policies with a difference above zero.
        policies: number of policies.
        cost: time of an executed step, relative to the policy as it is; median over policies.
    """

    text: str
    value: float
    interval: tuple[float, float]
    positive: int
    policies: int
    cost: float


def _chosen(group: str) -> Callable[[MainResult], str]:
    return lambda result: result.choices.get(group, result.choices[FREE]).arm


def _fixed(arm: str) -> Callable[[MainResult], str]:
    return lambda result: arm


#: Text, the arm, and the arm that it is compared with.
CLAIMS: tuple[tuple[str, Callable[[MainResult], str], Callable[[MainResult], str]], ...] = (
    ("the paper's rule, K = 16, against the policy as it is", _fixed(PAPER), _fixed(AS_IT_IS)),
    (f"`{RECOMMENDED}`, the same for all, against the policy as it is", _fixed(RECOMMENDED), _fixed(AS_IT_IS)),
    ("the best free change against the policy as it is", _chosen(FREE), _fixed(AS_IT_IS)),
    ("the best arm with K = 16 against the policy as it is", _chosen(CANDIDATES), _fixed(AS_IT_IS)),
    ("the best arm with K = 16 against the best free change", _chosen(CANDIDATES), _chosen(FREE)),
    ("the best arm with K = 16 that is no slower, against the best free change", _chosen(NO_SLOWER), _chosen(FREE)),
    ("the paper's rule, K = 16, against the best free change", _fixed(PAPER), _chosen(FREE)),
    (f"`{RECOMMENDED}`, the same for all, against the best free change", _fixed(RECOMMENDED), _chosen(FREE)),
)


def pooled(results: Sequence[MainResult]) -> list[Claim]:
    """Every claim over all policies."""
    found = []
    for text, arm, base in CLAIMS:
        values = [_difference(result, arm(result), base(result)) for result in results]
        cost = sorted(result.arm(arm(result)).per_step for result in results)
        mean, interval = mean_interval(values)
        found.append(Claim(text, mean, interval, sum(value > 0 for value in values), len(values), cost[len(cost) // 2]))
    return found


def _difference(result: MainResult, arm: str, base: str) -> float:
    found = result.difference(arm, base)
    return 0.0 if found is None else found.value  # an arm and itself


def mean_interval(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Mean, and Student's 95 % interval; without bounds for a single value.

    >>> mean_interval([0.1, 0.2, 0.3])[0]
    0.2
    """
    from scipy import stats

    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return mean, (-math.inf, math.inf)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    reach = float(stats.t.ppf(0.975, n - 1)) * deviation / math.sqrt(n)
    return round(mean, 12), (mean - reach, mean + reach)
