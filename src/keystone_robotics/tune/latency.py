"""The latency of one round of each arm, measured before any episode is spent, and the limit that it must keep."""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.rollout import LiveEpisode, Planner, begin_episode
from keystone_robotics.evaluate.worker import Worker
from keystone_robotics.profiling.measure import is_out_of_memory
from keystone_robotics.profiling.result import TOLERANCE
from keystone_robotics.spec import Spec

#: Rounds of each arm; where they take longer than `SECONDS`, fewer, but no fewer than `LEAST_ROUNDS`.
ROUNDS, LEAST_ROUNDS, SECONDS = 50, 5, 60.0
#: Tasks whose first observation is used.
OBSERVATIONS = 4
NO_LIMIT = "none"


@dataclass(frozen=True)
class LatencyLimit:
    """How long a round may take.

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

    def allows(self, milliseconds: float, own: float) -> bool:
        """Whether a latency is within the limit.

        Args:
            milliseconds: of the arm.
            own: of the policy as it is.
        """
        return milliseconds <= (self.value * own * (1 + TOLERANCE) if self.relative else self.value)


@dataclass
class Latencies:
    """What was measured.

    Attributes:
        milliseconds: of each round, by name of the arm that was timed, see `_alike`.
        refused: by name of the arm, why the policy cannot be attached to with it.
    """

    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def of(self, arm: Spec) -> float:
        """Median milliseconds of a round."""
        return float(np.median(self.milliseconds[_key(arm)]))

    def spread(self, arm: Spec) -> float:
        """Interquartile range of its rounds, as a share of the median."""
        low, middle, high = np.percentile(self.milliseconds[_key(arm)], [25, 50, 75])
        return float((high - low) / middle)

    def covers(self, arms: Sequence[Spec]) -> bool:
        """Whether all these arms were measured or refused."""
        return all(str(arm) in self.refused or _key(arm) in self.milliseconds for arm in arms)


def _alike(arm: Spec) -> Spec:
    """The arm that is timed for this one: temperature and executed steps do not change a round, but that a temperature other
    than 1 takes K = 1 off the policy's own code. Arms of equal cost are so never on both sides of the limit.
    """
    cooled = arm.k == 1 and arm.temperature != 1
    return dataclasses.replace(arm, execute=None, temperature=0.5 if cooled else 1.0)


def _key(arm: Spec) -> str:
    return str(_alike(arm))


def measure_latencies(
    worker: Worker, arms: Sequence[Spec], watch: Callable[[int, int], None] = lambda done, total: None
) -> Latencies:
    """Time one round of every arm in turn at batch size 1 on real observations, on one thread, again and again.

    Args:
        worker: with the policy.
        arms: the policy as it is first. Those that the policy refuses are not timed.
        watch: is told how many sweeps over the arms are done, and how many there will be at most.
    """
    found, begin = Latencies(), time.monotonic()
    torch.set_num_threads(1)
    for arm in arms:
        _refusing(found.refused, arm, functools.partial(_attach, worker, arm))
    timed = {_key(arm): _alike(arm) for arm in arms if str(arm) not in found.refused}
    failed: dict[str, str] = {}
    with _observations(worker) as observations:
        for sweep in range(-1, ROUNDS):  # the first is the warm-up, with the self-check of each arm
            watch(max(sweep, 0), ROUNDS)
            episode, task = observations[sweep % len(observations)]
            names = [name for name in timed if name not in failed]
            turn = sweep % max(1, len(names))
            for name in (*names[turn:], *names[:turn]):
                taken = _refusing(failed, timed[name], functools.partial(_time, worker, timed[name], episode, task))
                if taken is not None and sweep >= 0:
                    found.milliseconds.setdefault(name, []).append(taken)
            if sweep + 1 >= LEAST_ROUNDS and time.monotonic() - begin > SECONDS:
                break
    found.refused.update({str(arm): failed[_key(arm)] for arm in arms if _key(arm) in failed})
    own = str(arms[0])
    if own in found.refused:
        raise KeystoneError(found.refused[own])
    return found


def _attach(worker: Worker, arm: Spec) -> float:
    with worker.attached(arm):
        return 0.0


def _time(worker: Worker, arm: Spec, episode: LiveEpisode, task: str) -> float:
    with worker.attached(arm) as handle:
        planner = Planner(worker.agent, handle, task, worker.activity)
        planner.time_round(episode)  # as in a running loop: what it needs is in the caches
        return planner.time_round(episode)


def _refusing(refused: dict[str, str], arm: Spec, measure: Callable[[], float]) -> float | None:
    """What ``measure`` returns; None if the policy refuses the arm, which is noted."""
    try:
        return measure()
    except KeystoneError as error:
        refused[str(arm)] = str(error)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        refused[str(arm)] = f"K = {arm.k} does not fit into memory"
    return None


@contextmanager
def _observations(worker: Worker) -> Iterator[list[tuple[LiveEpisode, str]]]:
    """The first episode of some tasks, at its beginning."""
    settings, found = worker.settings, list[tuple[LiveEpisode, str]]()
    try:
        for task in settings.tasks[:OBSERVATIONS]:
            noise = functools.partial(settings.noise_seed, 0, task, 0)
            found.append((LiveEpisode(0, worker.benchmark.make(task), settings.initial_seed(0), noise), task))
            begin_episode(found[-1][0], worker.agent.history)
        yield found
    finally:
        for episode, _ in found:
            episode.env.close()
