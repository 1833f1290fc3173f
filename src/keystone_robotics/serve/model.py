"""The queue, the threads that take rounds from it, and what is remembered of each robot."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from keystone_robotics.sample.event import Listener
from keystone_robotics.serve.messages import Ask, Content, Done, Refused, Reply, RobotId, Waiting
from keystone_robotics.serve.replica import Replicas, WarmUp
from keystone_robotics.serve.rounds import Robot, Rounds
from keystone_robotics.serve.scheduler import Batch, Limits, Scheduler, Setting

log = logging.getLogger("keystone.serve")

#: Robots whose history is remembered; those without a request for the longest time are forgotten first.
ROBOTS = 1024
#: Seconds after which a round is taken for one that hangs.
STALLED = 30.0


class Model:
    """Loads nothing and listens to nothing: it answers what is submitted, in rounds of its replicas.

    Attributes:
        interface: of the policy.
        rule: that selects a candidate.
        k: candidates of a robot, at most.
        horizon: steps of a chunk; None before the warm-up, or if only the policy knows.

    Args:
        replicas: that compute the rounds.
        limits: of queue and rounds.
        listeners: of rounds, an `Alarm` for instance.
        on_batch: is called after every round with the batch, its seconds and the reports; for metrics.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        replicas: Replicas,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        listeners: Sequence[Listener] = (),
        on_batch: Callable[[Batch, float, Sequence[dict[str, Any]]], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replicas, self.limits, self.interface = replicas, limits, replicas.interface
        self._rounds = Rounds(replicas, listeners)
        self.rule, self.alarm = self._rounds.rule, self._rounds.alarm
        self._clock, self._on_batch = clock, on_batch
        self._robots: OrderedDict[Hashable, Robot] = OrderedDict()
        self._first_episode = 0  # of a robot that is not known: later than all that had to make room
        self._ready = threading.Condition()
        self._ending = False
        self._threads: list[threading.Thread] = []
        self._know(WarmUp(replicas.spec.k if isinstance(replicas.spec.k, int) else 1))

    def warm_up(self) -> WarmUp:
        """Run the policy before the server listens.

        Raises:
            KeystoneError: if the self-check fails.
        """
        found = self.replicas.warm_up(self.limits)
        self._know(found)
        return found

    def _know(self, found: WarmUp) -> None:
        limits = self.limits
        self.k, self.horizon, self.latency = found.k, found.horizon, found.latency
        most = limits.max_batch if self.interface.batches else 1
        settings = limits.settings(found.k, self.replicas.spec.steps)
        self.scheduler = Scheduler(
            settings, self.latency, limits.max_waiting, most, limits.max_age, self.replicas.count
        )

    # ---- requests, from any thread

    def submit(self, ask: Ask, done: Done) -> Waiting:
        """Queue a request; ``done`` is called once, from any thread, unless it is withdrawn.

        Raises:
            Refused: if it is not queued; then ``done`` is not called.
        """
        observation, task, group = self.interface.prepare(ask)
        now, wall = self._clock(), time.time()
        observed_at = wall if ask.observed_at is None else ask.observed_at
        if (ahead := observed_at - wall) > self.limits.max_age:
            raise Refused(
                "stale", f"the observation is of {ahead:.3g} s from now: set the robot's clock, or the server's"
            )
        deadline_ms = self.limits.deadline_ms if ask.deadline_ms is None else ask.deadline_ms
        deadline = float("inf") if deadline_ms is None else now + deadline_ms / 1000
        content = Content(ask, observation, task, done, observed_at)
        observed = now - max(wall - observed_at, 0.0)  # a client's clock that is ahead makes nothing younger
        with self._ready:
            if self._ending:
                raise Refused("draining", "the server is shutting down")
            request = Waiting(ask.robot, (group, self._begins(ask.robot)), now, deadline, observed, content)
            replaced = self.scheduler.submit(request)
            self._ready.notify()
        if replaced is not None:
            replaced.content.done(Refused("replaced", "a newer request of the same robot came before this one began"))
        return request

    def withdraw(self, request: Waiting) -> bool:
        """Remove a request that has not begun; whether it was there."""
        with self._ready:
            return self.scheduler.cancel(request)

    def expires_in(self, request: Waiting) -> float | None:
        """Seconds until the observation is too old; None if it never is."""
        left = self.limits.max_age - request.age(self._clock())
        return None if math.isinf(left) else left

    def stale(self, request: Waiting) -> Refused:
        """What a request is answered whose observation is too old."""
        age = request.age(self._clock())
        return Refused("stale", f"the observation is {age:.3g} s old: at most {self.limits.max_age:g} s (--max-age)")

    def _begins(self, robot: RobotId) -> bool:
        """Whether the rule looks back and the robot has no last chunk: such robots have a round of their own."""
        known = self._robots.get(robot)
        return self.rule.remembers and (known is None or known.chunk is None)

    def reset(self, robot: RobotId) -> None:
        """Begin a new episode of a robot."""
        with self._ready:
            known = self._robots.get(robot)
            if known is not None:
                self._robots[robot] = Robot(deque(maxlen=self.interface.history), episode=known.episode + 1)

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
            return not self.scheduler.running and not len(self.scheduler)

    @property
    def stalled(self) -> bool:
        """Whether every replica has been computing a round for so long that it may never end."""
        with self._ready:
            hanging = [one for one in self.scheduler.running if self._clock() - one.began > STALLED]
            return len(hanging) >= self.replicas.count

    # ---- the threads

    def start(self) -> None:
        """Start to answer."""
        for number in range(self.replicas.count):
            self._threads.append(threading.Thread(target=self._run, name=f"keystone-model-{number}", daemon=True))
            self._threads[-1].start()

    def stop(self, drain: float = 0.0) -> None:
        """Refuse new requests, answer those that wait for at most ``drain`` seconds, and end the threads.

        A round that has not ended by then is not waited for: its robots are refused.
        """
        with self._ready:
            self._ending = True
            self._ready.notify_all()
        end = time.monotonic() + drain
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        with self._ready:
            left = [one for batch in self.scheduler.running for one in batch.waiting] + self.scheduler.take_all()
        for one in left:
            one.content.done(Refused("draining", "the server is shutting down"))

    def _run(self) -> None:
        while True:
            with self._ready:
                while True:
                    now = self._clock()
                    stale, batch = self.scheduler.take_stale(now), self.scheduler.next(now)
                    if stale or batch is not None:
                        break
                    if self._ending and not len(self.scheduler):
                        return
                    self._ready.wait()
            for one in stale:
                one.content.done(self.stale(one))
            if batch is None:
                continue
            try:
                self._answer(batch)
            except BaseException as error:  # the thread must outlive everything; nobody else would answer
                log.exception("the model thread failed in a round")
                for one in batch.waiting:
                    one.content.done(Refused("model", f"the server failed: {type(error).__name__}"))
            finally:
                with self._ready:
                    self.scheduler.finish(batch)
                    self._ready.notify_all()  # a newer request of a robot waits for the end of its round

    def _answer(self, batch: Batch) -> None:
        robots = [self._recall(request) for request in batch.waiting]
        begin = self._clock()
        outcomes, notes, together = self._rounds.run(batch, robots)
        seconds = self._clock() - begin
        if together and not any(isinstance(one, Refused) for one in outcomes):
            with self._ready:
                self.latency.observe(len(batch.waiting), batch.setting, seconds)
        best, now, reports = self.scheduler.settings[0], self._clock(), []
        for request, robot, outcome, note in zip(batch.waiting, robots, outcomes, notes, strict=True):
            content: Content = request.content
            if isinstance(outcome, Refused):
                content.done(outcome)
                continue
            if request.age(now) > self.limits.max_age:
                content.done(self.stale(request))
                continue
            answer, report, robot.chunk = outcome
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
            content.done(Reply(answer.actions, answer.own, report, content.observed_at))
        self._on_batch(batch, seconds, reports)

    def _recall(self, request: Waiting) -> Robot:
        """What is remembered of the robot, with its new observation."""
        with self._ready:
            robot = self._robots.get(request.robot)
            if robot is None:
                robot = Robot(deque(maxlen=self.interface.history), episode=self._first_episode)
                self._robots[request.robot] = robot
                while len(self._robots) > ROBOTS:
                    name, oldest = self._robots.popitem(last=False)
                    # or its noise would be drawn again
                    self._first_episode = max(self._first_episode, oldest.episode + 1)
                    if self.alarm is not None:
                        self.alarm.forget((name, oldest.episode))
            self._robots.move_to_end(request.robot)
            robot.observations.append(request.content.observation)
        return robot


def _steps(setting: Setting) -> str:
    return "" if setting.steps is None else f", steps={setting.steps}"
