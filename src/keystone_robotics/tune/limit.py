"""The limit that the latency of an arm must keep."""

from __future__ import annotations

import re
from dataclasses import dataclass

from keystone_robotics.errors import KeystoneError

NO_LIMIT = "none"
#: More than a relative limit that is within it: two measurements of equal arms differ by so much.
TOLERANCE = 0.05


@dataclass(frozen=True)
class LatencyLimit:
    """How much time the rounds of an arm may take for as many executed steps as one round of the policy as it is has.

    So an arm that executes half of the steps, and has twice the rounds, counts twice.

    Attributes:
        value: milliseconds, or a multiple of the latency of the policy as it is.
        relative: it is a multiple. Then 5 % more is within the limit, so that an arm of equal cost is not out by chance.
    """

    value: float
    relative: bool = True

    @classmethod
    def parse(cls, text: str) -> LatencyLimit | None:
        """From ``1.0``, ``20ms`` or ``none``.

        >>> LatencyLimit.parse("20ms"), LatencyLimit.parse("none")
        (LatencyLimit(value=20.0, relative=False), None)
        """
        if text.strip() == NO_LIMIT:
            return None
        found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(ms)?", text.strip())
        if found is None or float(found[1]) == 0:
            raise KeystoneError(
                f"--latency {text}: expected a multiple of the policy's latency (1.0), milliseconds (20ms) or {NO_LIMIT}"
            )
        return cls(float(found[1]), found[2] is None)

    def __str__(self) -> str:
        return f"{self.value:g}" if self.relative else f"{self.value:g}ms"

    def allows(self, milliseconds: float, ratio: float) -> bool:
        """Whether an arm is within the limit.

        Args:
            milliseconds: for as many executed steps as one round of the policy as it is has.
            ratio: time of an executed step relative to the policy as it is.

        >>> LatencyLimit(1.0).allows(20.5, 1.04), LatencyLimit(20.0, relative=False).allows(20.5, 1.04)
        (True, False)
        """
        return ratio <= self.value * (1 + TOLERANCE) if self.relative else milliseconds <= self.value
