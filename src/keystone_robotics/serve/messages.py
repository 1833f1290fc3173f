"""What passes between protocols and the model: a request of a robot, its reply, or a refusal in words."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keystone_robotics.errors import KeystoneError

#: Keys in an observation (openpi, StarVLA) or in ``options`` (GR00T). They are removed before the policy is called.
EPISODE, SEED, DEADLINE, TIME = "keystone_episode", "keystone_seed", "keystone_deadline_ms", "keystone_time"
LONGEST_NAME = 256


class Refused(KeystoneError):
    """A request that is not answered with a chunk; the message says why.

    Attributes:
        reason: one word for metrics: "full", "replaced", "stale", "draining", "token", "observation", "model", "message".
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RobotId(NamedTuple):
    """Whose an observation is. An episode that a client names is never a connection, whatever the name.

    Attributes:
        name: of the episode that the client named, or of its connection.
        named: by the client.
        row: of a message with several robots.
    """

    name: str
    named: bool = False
    row: int | None = None


@dataclass(frozen=True)
class Ask:
    """One observation of a robot, independent of the protocol.

    Attributes:
        robot: whose it is.
        observation: with the client's keys.
        task: the instruction, if it is not in the observation.
        seed: of the noise; None for a random one.
        deadline_ms: after its arrival; None for the server's.
        observed_at: seconds since 1970 by the client's clock; None if it gave none.
    """

    robot: RobotId
    observation: Mapping[str, Any] = field(repr=False)
    task: str = ""
    seed: int | None = None
    deadline_ms: float | None = None
    observed_at: float | None = None


@dataclass(frozen=True)
class Reply:
    """The answer to an `Ask`.

    Attributes:
        actions: (T, D) float32 in the robot's units; None if the policy answers in a format of its own.
        own: the policy's own reply, where it has a format of its own.
        report: what KeyStone has to say, in plain numbers and lists; the same in every protocol.
        observed_at: seconds since 1970: when the observation was made, or arrived.
    """

    actions: Any
    own: Any
    report: dict[str, Any]
    observed_at: float


@dataclass(eq=False)
class Waiting:
    """A request in the queue. Times are seconds of the server's monotonic clock.

    Attributes:
        robot: a newer request of the same robot replaces this one until it has begun.
        group: requests of one group can be answered in one round.
        arrived: when.
        deadline: until when the reply should be there; infinity if it has none.
        observed: when the observation was made.
        content: for the model.
    """

    robot: Hashable
    group: Hashable
    arrived: float
    deadline: float = math.inf
    observed: float | None = None
    content: Any = field(default=None, repr=False)

    def age(self, now: float) -> float:
        """Of the observation, in seconds."""
        return now - (self.arrived if self.observed is None else self.observed)


def take_options(given: dict[str, Any]) -> dict[str, Any]:
    """Remove KeyStone's keys from a message; returns arguments of `Ask`, with ``episode`` if the client named one.

    >>> message = {"state": [0.0], "keystone_seed": 7, "keystone_deadline_ms": 80}
    >>> take_options(message), message
    ({'seed': 7, 'deadline_ms': 80.0}, {'state': [0.0]})
    """
    options: dict[str, Any] = {}
    episode = given.pop(EPISODE, None)
    if episode is not None and str(episode):
        options["episode"] = str(episode)[:LONGEST_NAME]
    if (seed := given.pop(SEED, None)) is not None:
        try:
            options["seed"] = operator.index(seed)
        except TypeError:
            raise Refused("observation", f"{SEED}={str(seed)[:50]!a}: expected a whole number") from None
    for key, name in ((DEADLINE, "deadline_ms"), (TIME, "observed_at")):
        if (value := given.pop(key, None)) is not None:
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = math.nan
            if not (math.isfinite(number) and number > 0):
                raise Refused("observation", f"{key}={str(value)[:50]!a}: expected a number above 0")
            options[name] = number
    return options


#: Gets a reply, or why there is none.
Done = Callable[["Reply | Refused"], None]


@dataclass
class Content:
    """What a request brings to the model."""

    ask: Ask
    observation: Any = field(repr=False)
    task: str
    done: Done
    observed_at: float
