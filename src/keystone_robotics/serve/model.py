"""The one thread that runs the policy: warm-up, the queue, and what is remembered of each robot."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.profiling.auto import AutoK
from keystone_robotics.sample.noise import preserve_rng
from keystone_robotics.sample.seeds import row_seeds
from keystone_robotics.serve.messages import Ask, Content, Done, Refused, Reply, RobotId, Waiting
from keystone_robotics.serve.policy import Row, Served
from keystone_robotics.serve.rounds import Robot, Rounds
from keystone_robotics.serve.scheduler import Batch, LatencyTable, Scheduler, Setting, settings_from
from keystone_robotics.spec import Spec

log = logging.getLogger("keystone.serve")

#: Robots whose history is remembered; those without a request for the longest time are forgotten first.
ROBOTS = 1024
#: Timed rounds of each size and setting before the server listens.
MEASURED = 3


@dataclass(frozen=True)
class Limits:
    """How much the scheduler takes on.

    Attributes:
        deadline_ms: of requests that give none.
        max_age: seconds after which an observation is not answered any more.
        max_batch: robots in a round.
        max_waiting: requests in the queue.
        least_k: K is not reduced below.
        least_steps: denoising steps are not reduced below; None: they are not reduced.
    """

    deadline_ms: float | None = None
    max_age: float = float("inf")
    max_batch: int = 16
    max_waiting: int = 256
    least_k: int = 1
    least_steps: int | None = None


class Model:
    """Loads nothing and listens to nothing: it attaches to a policy, warms it up, and answers what is submitted.

    Attributes:
        horizon: steps of a chunk; None before the warm-up, or if only the policy knows.

    Args:
        served: the policy.
        spec: how candidates are drawn and one is selected; its K is the most that a robot gets.
        limits: of queue and rounds.
        on_round: is called after every round with the batch, its seconds and the reports; for metrics.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        served: Served,
        spec: Spec,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        on_round: Callable[[Batch, float, Sequence[dict[str, Any]]], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.served, self.limits = served, limits
        self._rounds = Rounds(served, spec)
        self.handle, self.alarm = self._rounds.handle, self._rounds.alarm
        self._steps = spec.steps
        self._clock, self._on_round = clock, on_round
        self._robots: OrderedDict[Hashable, Robot] = OrderedDict()
        self._ready = threading.Condition()
        self._ending = False
        self._running: Batch | None = None
        self.horizon: int | None = None
        self._thread: threading.Thread | None = None
        self.latency = LatencyTable()
        self.scheduler = self._make_scheduler()

    def _make_scheduler(self) -> Scheduler:
        limits, k = self.limits, self.handle.k
        steps = self._steps
        if limits.least_steps is not None and steps is None:
            raise KeystoneError(
                "the least number of steps needs a number to start from: give steps in the Spec, steps=10"
            )
        settings = settings_from(k, min(limits.least_k, k), steps, limits.least_steps)
        most = limits.max_batch if self.served.batches else 1
        return Scheduler(settings, self.latency, limits.max_waiting, most, limits.max_age)

    # ---- warm-up

    def warm_up(self, progress: Callable[[str], None] = lambda line: None) -> bool:
        """Run the policy before the server listens: self-check, automatic K, and the latency of every setting.

        Returns:
            Whether there was an observation to run it on.

        Raises:
            KeystoneError: if the self-check fails.
        """
        row = self.served.example()
        if row is None:
            log.warning(
                "no warm-up: %s came without an observation; the first request runs the self-check", self.served.name
            )
            return False
        begin = self._clock()
        auto_k = self.handle.engine.listeners.find(AutoK)
        with self.served.warming(), self.handle.rehearsal(*auto_k), preserve_rng("cpu"):
            for number in (0, 1):  # K = "auto" is known after the second
                with self.handle.seeded([number]):
                    (answer,) = self.served.infer([self.served.example(number) or row])
            self.horizon = None if answer.actions is None else len(answer.actions)
            self.scheduler = self._make_scheduler()  # K may have been found just now
            sizes = [1]
            while sizes[-1] < self.scheduler.max_batch:
                sizes.append(min(2 * sizes[-1], self.scheduler.max_batch))
            for setting in self.scheduler.settings:
                for size in sizes:
                    self._measure([row] * size, setting)
        self._rounds.apply(self.scheduler.settings[0])
        self.handle.reset_history()
        slowest, fastest = self.scheduler.settings[0], self.scheduler.settings[-1]
        progress(
            f"warmed up in {self._clock() - begin:.1f} s: a round takes {1e3 * self.latency.estimate(1, slowest):.3g} ms at "
            f"K={slowest.k}, {1e3 * self.latency.estimate(1, fastest):.3g} ms at K={fastest.k}, "
            f"{1e3 * self.latency.estimate(sizes[-1], slowest):.3g} ms for {sizes[-1]} robots at K={slowest.k}"
        )
        return True

    def _measure(self, rows: list[Row], setting: Setting) -> None:
        self._rounds.apply(setting)
        for attempt in range(MEASURED + 1):
            begin = self._clock()
            with self.handle.seeded(row_seeds(attempt, len(rows))):
                self.served.infer(rows)
            if attempt:  # the first compiles, allocates and checks
                self.latency.measure(len(rows), setting, self._clock() - begin)

    # ---- requests, from any thread

    def submit(self, ask: Ask, done: Done) -> Callable[[], None]:
        """Queue a request; ``done`` is called once, from any thread. Returns the function that withdraws it.

        Raises:
            Refused: if it is not queued; then ``done`` is not called.
        """
        observation, task, group = self.served.prepare(ask)
        now, wall = self._clock(), time.time()
        observed_at = wall if ask.observed_at is None else ask.observed_at
        deadline_ms = self.limits.deadline_ms if ask.deadline_ms is None else ask.deadline_ms
        deadline = float("inf") if deadline_ms is None else now + deadline_ms / 1000
        looks_back = self.handle.rule.remembers and self._has_history(ask.robot)
        content = Content(ask, observation, task, done, observed_at)
        observed = now - max(wall - observed_at, 0.0)  # a client's clock that is ahead makes nothing younger
        request = Waiting(ask.robot, (group, looks_back), now, deadline, observed, content)
        with self._ready:
            if self._ending:
                raise Refused("draining", "the server is shutting down")
            replaced = self.scheduler.submit(request)
            self._ready.notify()
        if replaced is not None:
            replaced.content.done(Refused("replaced", "a newer request of the same robot came before this one began"))

        def withdraw() -> None:
            with self._ready:
                self.scheduler.cancel(request)

        return withdraw

    def _has_history(self, robot: RobotId) -> bool:
        with self._ready:
            known = self._robots.get(robot)
            return known is not None and known.chunk is not None

    def reset(self, robot: RobotId) -> None:
        """Begin a new episode of a robot."""
        with self._ready:
            known = self._robots.get(robot)
            if known is not None:
                self._robots[robot] = Robot(deque(maxlen=self.served.history), episode=known.episode + 1)

    def forget(self, robot: RobotId) -> None:
        """Drop what is remembered of a robot that is gone."""
        with self._ready:
            known = self._robots.pop(robot, None)
        if known is not None and self.alarm is not None:
            self.alarm.forget((robot, known.episode))

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self.scheduler)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        with self._ready:
            return self._running is None and not len(self.scheduler)

    # ---- the thread

    def start(self) -> None:
        """Start to answer."""
        self._thread = threading.Thread(target=self._run, name="keystone-model", daemon=True)
        self._thread.start()

    def stop(self, drain: float = 0.0) -> None:
        """Refuse new requests, answer those that wait for at most ``drain`` seconds, and end the thread.

        A round that has not ended by then is not waited for: its robots are refused.
        """
        with self._ready:
            self._ending = True
            self._ready.notify()
        if self._thread is not None:
            self._thread.join(drain)
        with self._ready:
            left = [] if self._running is None else list(self._running.waiting)
            while (batch := self.scheduler.next(self._clock())) is not None:
                left += batch.waiting
        for one in left:
            one.content.done(Refused("draining", "the server is shutting down"))

    def _run(self) -> None:
        while True:
            with self._ready:
                self._running = None
                while not len(self.scheduler) and not self._ending:
                    self._ready.wait()
                now = self._clock()
                stale = self.scheduler.take_stale(now)
                batch = self.scheduler.next(now)
                self._running = batch
                ending = self._ending
            for one in stale:
                one.content.done(self._stale(one, now))
            if batch is not None:
                try:
                    self._answer(batch)
                except BaseException as error:  # the thread must outlive everything; nobody else would answer
                    log.exception("the model thread failed in a round")
                    for one in batch.waiting:
                        one.content.done(Refused("model", f"the server failed: {type(error).__name__}"))
            elif ending:
                return

    def _stale(self, request: Waiting, now: float) -> Refused:
        return Refused(
            "stale", f"the observation is {request.age(now):.3g} s old: at most {self.limits.max_age:g} s (--max-age)"
        )

    def _answer(self, batch: Batch) -> None:
        robots = [self._recall(request) for request in batch.waiting]
        begin = self._clock()
        outcomes, notes, together = self._rounds.run(batch, robots)
        seconds = self._clock() - begin
        if together and not any(isinstance(one, Refused) for one in outcomes):
            self.latency.observe(len(batch.waiting), batch.setting, seconds)
        best, now, reports = self.scheduler.settings[0], self._clock(), []
        for request, outcome, note in zip(batch.waiting, outcomes, notes, strict=True):
            content: Content = request.content
            if isinstance(outcome, Refused):
                content.done(outcome)
                continue
            answer, report = outcome
            reasons = [] if note is None else [note]
            if batch.setting != best:
                reasons.insert(
                    0, f"K={batch.setting.k}" + _steps(batch.setting) + " to meet the deadlines of those waiting"
                )
            report = {
                **report,
                "batch": len(batch.waiting),
                "queue_ms": round(1000 * (begin - request.arrived), 3),
                "model_ms": round(1000 * seconds, 3),
                "degraded": bool(reasons),
                "degraded_reason": "; ".join(reasons) or None,
                "late": now > request.deadline,
                "observed_at": content.observed_at,
            }
            reports.append(report)
            stale = request.age(now) > self.limits.max_age
            reply = Reply(answer.actions, answer.own, report, content.observed_at)
            content.done(self._stale(request, now) if stale else reply)
        self._on_round(batch, seconds, reports)

    def _recall(self, request: Waiting) -> Robot:
        """What is remembered of the robot, with its new observation."""
        with self._ready:
            robot = self._robots.get(request.robot)
            if robot is None:
                robot = self._robots[request.robot] = Robot(deque(maxlen=self.served.history))
                while len(self._robots) > ROBOTS:
                    self._robots.popitem(last=False)
            self._robots.move_to_end(request.robot)
            robot.observations.append(request.content.observation)
        return robot


def _steps(setting: Setting) -> str:
    return "" if setting.steps is None else f", steps={setting.steps}"
