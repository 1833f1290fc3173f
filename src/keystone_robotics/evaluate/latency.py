"""The latency of one round of each arm at batch size 1, all arms interleaved. Made to run in a worker."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.activity import Doing
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor, WorkerFailed
from keystone_robotics.evaluate.rollout import EPISODE_ERRORS, LiveEpisode, Planner, begin_episode
from keystone_robotics.evaluate.worker import Worker, one_thread
from keystone_robotics.profiling.measure import is_out_of_memory
from keystone_robotics.spec import Spec

#: Rounds of each arm; where they take longer than `SECONDS`, fewer, but no fewer than `LEAST_ROUNDS`.
ROUNDS, LEAST_ROUNDS, SECONDS = 50, 5, 60.0
#: Tasks whose first observation is used.
OBSERVATIONS = 4


@dataclass
class Latencies:
    """What was measured.

    Attributes:
        execute: steps of a chunk that the policy executes unless an arm says otherwise.
        milliseconds: of each round, by name of the arm that was timed, see `timed_arm`; the n-th rounds of all arms were timed
            in turn. The first arm is what the others are compared with.
        refused: by name of the arm, why the policy cannot be attached to with it, or fails with it.
    """

    execute: int
    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def round_ms(self, arm: Spec) -> float:
        """Median milliseconds of a round."""
        return float(np.median(self.milliseconds[str(timed_arm(arm))]))

    def round_ratio(self, arm: Spec) -> float:
        """A round relative to one of the first arm: the median of the ratios of rounds that were timed in turn."""
        own = next(iter(self.milliseconds.values()))
        return float(np.median(np.divide(self.milliseconds[str(timed_arm(arm))], own)))

    def rounds(self, arm: Spec) -> float:
        """Rounds in which the arm executes as many steps as one round of the policy as it is: 2 with half of the steps. An
        adaptive horizon counts with its fewest steps: a limit holds also where the candidates never agree.
        """
        span = arm.execute_range
        return self.execute / (span.least if span is not None else arm.most_steps or self.execute)

    def step_ratio(self, arm: Spec) -> float:
        """The time of an executed step, relative to the first arm."""
        return self.round_ratio(arm) * self.rounds(arm)

    def step_ms(self, arm: Spec) -> float:
        """Milliseconds for as many executed steps as one round of the policy as it is has."""
        return self.round_ms(arm) * self.rounds(arm)

    def spread(self, arm: Spec) -> float:
        """Interquartile range of its rounds, as a share of the median."""
        low, middle, high = np.percentile(self.milliseconds[str(timed_arm(arm))], [25, 50, 75])
        return float((high - low) / middle)

    def covers(self, arms: Sequence[Spec]) -> bool:
        """Whether all these arms were measured or refused."""
        return all(str(arm) in self.refused or str(timed_arm(arm)) in self.milliseconds for arm in arms)


def timed_arm(arm: Spec) -> Spec:
    """The arm that is timed for this one: temperature and executed steps do not change a round. Arms of equal cost are so never
    on both sides of a limit. Adaptive K is timed where the first few candidates disagree: both draws.

    >>> timed_arm(Spec.parse("core-mean:k=4..16:0.4,execute=2..8,temperature=0.8"))
    Spec('core-mean:k=4..16:0')
    """
    span = arm.k_range
    k = arm.k if span is None else str(dataclasses.replace(span, limit=0.0))
    return dataclasses.replace(arm, k=k, execute=None, temperature=1.0)


def measure_latencies(
    executor: Executor, settings: EvaluationConfig, arms: Sequence[Spec], clock: Callable[[], float] = time.perf_counter
) -> Latencies:
    """Time one round of every arm in a worker of the executor, where its episodes are rolled out.

    An arm with which the worker dies three times, or hangs, is refused, and the others are measured again.

    Args:
        executor: whose workers are used.
        settings: of the evaluation.
        arms: the one that the others are compared with first. Those that the policy refuses are not timed.
        clock: `time.perf_counter`, or `time.thread_time` for the CPU time of a policy that computes on one thread.

    Raises:
        KeystoneError: if the first arm cannot be measured.
    """
    refused: dict[str, str] = {}
    while True:
        left = [arm for arm in arms if str(arm) not in refused]
        try:
            found = executor.run_in_worker(settings, functools.partial(time_rounds, arms=left, clock=clock))
        except WorkerFailed as error:
            if error.episode is None or not 0 < error.episode < len(left):
                raise KeystoneError(f"latencies cannot be measured: {error.reason}") from error
            failed = timed_arm(left[error.episode])
            refused |= {str(arm): error.reason for arm in left if timed_arm(arm) == failed}
            continue
        return dataclasses.replace(found, refused=refused | found.refused)


def time_rounds(worker: Worker, arms: Sequence[Spec], clock: Callable[[], float]) -> Latencies:
    """In a worker: time one round of every arm in turn on real observations, on one thread, again and again.

    The worker's activity has the number of the arm in place of an episode's, so that its supervisor knows the arm at fault.
    """
    found, begin = Latencies(worker.execute), time.monotonic()
    timed: dict[str, tuple[int, Spec]] = {}
    failed: dict[str, str] = {}
    with one_thread(), _first_episodes(worker) as episodes:
        for number, arm in enumerate(arms):
            with worker.activity.policy([number]), _noting_refusals(found.refused, str(arm), arm), worker.attached(arm):
                timed.setdefault(str(timed_arm(arm)), (number, timed_arm(arm)))
        for sweep in range(-1, ROUNDS):  # the first is the warm-up, with the self-check of each arm
            episode, task = episodes[sweep % len(episodes)]
            names = [name for name in timed if name not in failed]
            turn = sweep % max(1, len(names))
            for name in (*names[turn:], *names[:turn]):
                episode.number, arm = timed[name]
                with _noting_refusals(failed, name, arm):
                    taken = _time(worker, arm, episode, task, clock)
                    if sweep >= 0:
                        found.milliseconds.setdefault(name, []).append(taken)
            if sweep + 1 >= LEAST_ROUNDS and time.monotonic() - begin > SECONDS:
                break
    found.refused.update({str(arm): failed[name] for arm in arms if (name := str(timed_arm(arm))) in failed})
    for name in failed:
        found.milliseconds.pop(name, None)
    own = str(arms[0])
    if own in found.refused:
        raise KeystoneError(f"latencies cannot be measured: {own}: {found.refused[own]}")
    first = found.milliseconds.pop(str(timed_arm(arms[0])))
    found.milliseconds = {str(timed_arm(arms[0])): first, **found.milliseconds}  # sweeps begin with another arm each
    return found


def _time(worker: Worker, arm: Spec, episode: LiveEpisode, task: str, clock: Callable[[], float]) -> float:
    with worker.attached(arm) as handle:
        planner = Planner(worker.agent, handle, task, worker.activity)
        planner.time_round(episode)  # as in a running loop: what it needs is in the caches
        return planner.time_round(episode, clock)


@contextmanager
def _noting_refusals(refused: dict[str, str], name: str, arm: Spec) -> Iterator[None]:
    """An error of the policy with an arm is noted: the others can still be timed."""
    try:
        yield
    except KeystoneError as error:
        refused[name] = str(error)
    except Exception as error:
        first, *_ = str(error).splitlines() or [""]
        refused[name] = (
            f"K = {arm.k} does not fit into memory"
            if is_out_of_memory(error)
            else f"the policy fails with it: {type(error).__name__}: {first}"
        )


@contextmanager
def _first_episodes(worker: Worker) -> Iterator[list[tuple[LiveEpisode, str]]]:
    """The first episode of some tasks, at its beginning. Tasks whose first episode cannot begin are left out.

    Raises:
        KeystoneError: if none can.
    """
    settings, found, problem = worker.settings, list[tuple[LiveEpisode, str]](), ""
    with contextlib.ExitStack() as stack:
        for task in settings.tasks[:OBSERVATIONS]:
            noise = functools.partial(settings.noise_seed, 0, task, 0)
            try:
                with worker.activity.doing(Doing.PREPARING):
                    env = worker.benchmark.make(task)
                    stack.callback(env.close)
                    episode = LiveEpisode(0, env, settings.initial_seed(0), noise)
                    begin_episode(episode, worker.agent.history)
            except EPISODE_ERRORS as error:
                problem = f"task {task!r} cannot be begun: {type(error).__name__}: {error}"
                continue
            found.append((episode, task))
        if not found:
            raise KeystoneError(f"latencies cannot be measured: {problem}")
        yield found
