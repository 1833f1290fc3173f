"""What a tuning run is, and how its budget is divided."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.spec import Spec
from keystone_robotics.tune.limit import LatencyLimit
from keystone_robotics.tune.race import least_budget
from keystone_robotics.tune.space import DEFAULT_SPACE, POLICY_AS_IT_IS, expand, groups_of, is_free

#: Share of the budget for the confirmation.
CONFIRM_SHARE = 0.3
#: Initial states, over all tasks, below which a confirmation says nothing.
LEAST_STATES = 20
#: No slower than the policy as it is.
DEFAULT_LATENCY = LatencyLimit(1.0)


@dataclass(frozen=True)
class TuneConfig:
    """What to tune.

    Attributes:
        evaluation: policy, environment, tasks, seed and so on; its arms and numbers of episodes are not used.
        budget: episodes in all.
        space: arms with alternatives, see `keystone_robotics.tune.space.expand`.
        latency: limit of the time per executed step; None for no limit.
    """

    evaluation: EvaluationConfig
    budget: int
    space: tuple[str, ...] = DEFAULT_SPACE
    latency: LatencyLimit | None = DEFAULT_LATENCY

    def __post_init__(self) -> None:
        for pattern in self.space:
            for arm in expand(pattern, None):
                replace(self.evaluation, arms=(arm,))  # refuses what makes no sense in an evaluation

    @property
    def race_budget(self) -> int:
        """Episodes of the race."""
        return self.budget - int(self.budget * CONFIRM_SHARE)

    def confirm_states(self, arms: int) -> int:
        """Initial states of each task in the confirmation of a number of arms."""
        return int(self.budget * CONFIRM_SHARE) // (arms * len(self.evaluation.tasks))

    def check_budget(self, arms: Sequence[Spec]) -> None:
        """Refuse a budget that is too small to race these arms and to confirm the choice.

        Raises:
            KeystoneError: with the smallest one that is not, and what else would do.
        """
        tasks, least = len(self.evaluation.tasks), self.least_budget(arms)
        if self.budget >= least:
            return
        # The policy as it is, then arms of both groups in turn.
        groups = [[arm for arm in arms if is_free(arm) is free and arm != POLICY_AS_IT_IS] for free in (False, True)]
        turns = [POLICY_AS_IT_IS, *(arm for pair in itertools.zip_longest(*groups) for arm in pair if arm is not None)]
        fewer = next((n for n in range(len(turns) - 1, 1, -1) if self.least_budget(turns[:n]) <= self.budget), None)
        instead = f"{fewer} arms or fewer (--arm)" if fewer else "fewer arms (--arm)"
        raise KeystoneError(
            f"--budget {self.budget}: {len(arms)} arms on {tasks} tasks need {least} episodes or more. Give --budget {least}, "
            f"{instead}, or fewer --tasks; every arm runs once in every task, the better quarter again, and so on, and "
            f"{CONFIRM_SHARE:.0%} of the budget confirm the choice"
        )

    def least_budget(self, arms: Sequence[Spec]) -> int:
        """Episodes that racing these arms and confirming the choice need."""
        tasks, groups = len(self.evaluation.tasks), groups_of(arms)
        confirmed = 1 + len({group for group, arm in zip(groups, arms, strict=True) if arm != POLICY_AS_IT_IS})
        states = math.ceil(LEAST_STATES / tasks)
        confirmation = confirmed * states * tasks / CONFIRM_SHARE
        return math.ceil(max(least_budget(groups, tasks) / (1 - CONFIRM_SHARE), confirmation))

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        kept = ("policy", "env", "tasks", "seed", "shard", "max_steps", "execute", "device")
        values = {name: value for name, value in self.evaluation.as_dict().items() if name in kept}
        latency = None if self.latency is None else str(self.latency)
        return {**values, "budget": self.budget, "space": list(self.space), "latency": latency}
