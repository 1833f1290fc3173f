"""The alarm at run time: a listener of rounds that says when candidates disagree more than in successful episodes."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle
from keystone_robotics.monitor.calibration import Calibration
from keystone_robotics.monitor.conformal import window_mean
from keystone_robotics.monitor.mismatch import Comparison
from keystone_robotics.monitor.observed import Observed, observe
from keystone_robotics.monitor.overlap import overlap
from keystone_robotics.monitor.scores import find_score
from keystone_robotics.sample.episodes import EpisodeRow
from keystone_robotics.sample.event import RoundEvent

log = logging.getLogger("keystone")

EPISODES = 1024  #: that an alarm remembers; those without a round for the longest time are forgotten first


@dataclass(frozen=True)
class AlarmEvent:
    """The first alarming round of an episode.

    Attributes:
        episode: id of the episode, as in `RoundEvent.episodes`.
        round: of the episode, counted from 0.
        value: of the score, averaged over the alarm's window.
        limit: that it exceeded.
        reason: in words.
    """

    episode: Hashable
    round: int
    value: float
    limit: float
    reason: str


@dataclass
class _Episode:
    """What an alarm remembers of an episode."""

    recent: deque[float]
    rounds: int = 0
    before: Observed | None = None
    value: float = math.nan
    event: AlarmEvent | None = field(default=None)


class Alarm:
    """Rings once in an episode, when its score exceeds the calibrated limit. One alarm per attached policy.

    ``handle.subscribe(alarm)``. What happens then is the caller's: `on` takes functions, `active` the episodes in which it has
    rung. It never raises in a round: a failure inside is logged, and the round says nothing.

    Attributes:
        calibration: what ``alarm.json`` holds.
        mismatch: how the policy differed from the calibrated one in the last round; "" if not, or before the first round.

    >>> import torch, keystone_robotics as keystone
    >>> class Policy(torch.nn.Module):
    ...     def act(self, scale):
    ...         return scale * torch.randn(1, 8, 2) + torch.arange(8.0)[:, None]
    >>> policy = Policy()
    >>> alarm = Alarm(Calibration("dispersion", "high", "constant", (0.4,), 1, 0.05, 19))
    >>> stop = keystone.attach(policy, k=16, rule="medoid", site="act", seed=0).subscribe(alarm)
    >>> for scale in (0.1, 0.1, 10.0):
    ...     chunk = policy.act(torch.tensor(scale))
    >>> list(alarm.active.values())
    ['round 2: dispersion 0.57 > 0.40']
    """

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.mismatch = ""
        self._score = find_score(calibration.score)
        self._episodes: OrderedDict[Hashable, _Episode] = OrderedDict()
        self._callbacks: list[tuple[object, Callable[[AlarmEvent], object]]] = []
        self._comparison: Comparison | None = None  # with the policy that it is subscribed to
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Alarm:
        """From a file of ``keystone monitor calibrate``.

        Raises:
            KeystoneError: in one line, if it cannot be read.
        """
        return cls(Calibration.load(Path(path)))

    def __repr__(self) -> str:
        one = self.calibration
        return f"<Alarm: {one.score} {one.direction}, false alarms {one.false_alarms:g}, rung in {len(self.active)} episodes>"

    def on(self, callback: Callable[[AlarmEvent], object]) -> Callable[[], None]:
        """Call a function with the `AlarmEvent` when an episode becomes alarming; returns the function that removes it.

        It runs within the round, before the chunk is returned. One that raises is logged and stays.
        """
        if not callable(callback):
            raise TypeError(f"callback {callback!r}: expected a function that takes an AlarmEvent")
        entry = (object(), callback)
        with self._lock:
            self._callbacks.append(entry)

        def remove() -> None:
            with self._lock:
                if entry in self._callbacks:
                    self._callbacks.remove(entry)

        return remove

    @property
    def active(self) -> dict[Hashable, str]:
        """The reason, by id, for every episode in which it has rung, until the episode is forgotten."""
        with self._lock:
            return {name: one.event.reason for name, one in self._episodes.items() if one.event is not None}

    def as_fields(self, episode: Hashable = None) -> dict[str, Any]:
        """An episode's state after its last round, in JSON's types, for logs and replies.

        ``alarm``: it has rung in this episode; ``alarm_score``: the averaged score, None if it says nothing;
        ``alarm_limit``; ``alarm_reason``: None if it has not rung.

        Args:
            episode: its id, as in `RoundEvent.episodes`: what `Handle.for_episodes` named, or an `EpisodeRow`, the row of a
                batch since the last ``reset``. Default: the only episode.

        Raises:
            KeystoneError: if no round of such an episode was seen, or there are several and none is named.
        """
        with self._lock:
            if episode is None and len(self._episodes) == 1:
                episode = next(iter(self._episodes))
            if episode not in self._episodes:
                known = ", ".join(map(repr, list(self._episodes)[-5:])) or "none yet"
                what = "which episode" if episode is None else f"no round of episode {episode!r} was seen"
                raise KeystoneError(f"alarm: {what}; the latest are {known}")
            return self._fields(self._episodes[episode])

    def row_fields(self, event: RoundEvent) -> list[dict[str, Any]]:
        """`as_fields` of each row of a round. Never raises: all are None in rows that the alarm could not look at."""
        with self._lock:
            return [self._fields(self._episodes.get(episode)) for episode in event.episodes]

    def _fields(self, one: _Episode | None) -> dict[str, Any]:
        if one is None:
            return dict.fromkeys(("alarm", "alarm_score", "alarm_limit", "alarm_reason"))
        return {
            "alarm": one.event is not None,
            "alarm_score": one.value if math.isfinite(one.value) else None,
            "alarm_limit": self.calibration.limit_at(max(one.rounds - 1, 0)),
            "alarm_reason": None if one.event is None else one.event.reason,
        }

    def forget(self, episode: Hashable) -> None:
        """End an episode; a later round with its id begins a new one."""
        with self._lock:
            self._episodes.pop(episode, None)

    def reset(self) -> None:
        """End all episodes."""
        with self._lock:
            self._episodes.clear()

    def note_mismatch(self, mismatch: str) -> None:
        """Set `mismatch`, and warn of each once. A server calls it, whose policies may be in other processes."""
        if not self.calibration.weights:
            self._warn_once(
                "weights", "the alarm's file holds no fingerprint of weights: whether this policy is the calibrated one cannot "
                "be checked",
            )  # fmt: skip
        self.mismatch = mismatch
        if mismatch:
            text = "the alarm was calibrated for something else, and its rate of false alarms does not hold: %s"
            self._warn_once(mismatch, text, mismatch)

    def check_task(self, task: str) -> None:
        """Warn, once, of a task that it was not calibrated on. For callers that know the task, since rounds do not say it.

        Args:
            task: as the policy is told; "" if unknown.
        """
        tasks = self.calibration.tasks
        if task and tasks and task not in tasks:
            more = f" and {len(tasks) - 5} more" if len(tasks) > 5 else ""
            self._warn_once(
                "task", "the alarm was calibrated on %s: its rate of false alarms is unknown for task %a, unless that is "
                "another name of one of them", ", ".join(map(ascii, tasks[:5])) + more, task[:200],
            )  # fmt: skip

    # ---- as a listener

    def on_subscribe(self, handle: Handle) -> None:
        """Called by `Handle.subscribe`."""
        self.reset()
        handle.watch_reset()
        self._comparison, self.mismatch = Comparison(self.calibration, handle), ""

    def __call__(self, event: RoundEvent) -> None:
        """Update the episodes of a round; never raises."""
        try:
            if self._comparison is not None:
                self.note_mismatch(self._comparison(event))
            alarms = self._update(event)
        except Exception as error:
            self._warn_once(
                f"{type(error).__name__}", "the alarm failed in round %d and says nothing: %r", event.number, error
            )
            return
        for alarm in alarms:
            log.warning("KeyStone alarm, episode %s: %s", _name(alarm.episode), alarm.reason)
            for _, callback in list(self._callbacks):
                try:
                    callback(alarm)
                except Exception:  # noqa: PERF203 (the others must be called)
                    log.exception("KeyStone: callback %r of an alarm failed", callback)

    def _update(self, event: RoundEvent) -> list[AlarmEvent]:
        alarms = []
        with self._lock:
            self._forget_rows_before(event)
            for episode, now in zip(event.episodes, observe(event)):
                alarm = self._round(episode, now)
                if alarm is not None:
                    alarms.append(alarm)
            while len(self._episodes) > max(EPISODES, len(event.episodes)):
                self._episodes.popitem(last=False)
        return alarms

    def _round(self, episode: Hashable, now: Observed) -> AlarmEvent | None:
        calibration = self.calibration
        one = self._episodes.get(episode)
        if one is None:
            one = self._episodes[episode] = _Episode(deque(maxlen=calibration.window))
        self._episodes.move_to_end(episode)
        if now.valid < self._score.min_candidates:
            self._warn_once(
                "few", "the score %s needs %d finite candidates, a round had %d: it says nothing",
                self._score.name, self._score.min_candidates, now.valid,
            )  # fmt: skip
        value = self._score(now, one.before)
        if (
            self._score.uses_previous
            and one.before is not None
            and math.isnan(value)
            and overlap(now, one.before) is None
        ):
            executed = "an unknown number" if one.before.executed is None else one.before.executed
            self._warn_once(
                "overlap", "the alarm cannot ring: %s compares the steps that successive chunks both plan, and there are none "
                "(%s of %d steps are executed); execute fewer", self._score.name, executed, now.chunks.shape[1],
            )  # fmt: skip
        one.recent.append(value)
        one.before = now if self._score.uses_previous else None
        one.value = window_mean(one.recent)
        round, one.rounds = one.rounds, one.rounds + 1
        if one.event is not None or not calibration.exceeds(one.value, round):
            return None
        one.event = AlarmEvent(episode, round, one.value, calibration.limit_at(round), self._reason(round, one, now))
        return one.event

    def _reason(self, round: int, one: _Episode, now: Observed) -> str:
        calibration = self.calibration
        sign = ">" if calibration.direction == "high" else "<"
        several = f" (mean of {len(one.recent)} rounds)" if len(one.recent) > 1 else ""
        limit = calibration.limit_at(round)
        digits = _digits(one.value, limit)
        text = f"round {round}: {calibration.score} {one.value:{digits}}{several} {sign} {limit:{digits}}"
        split = now.split()
        return f"{text}; candidates split {split}" if ":" in split else text

    def _forget_rows_before(self, event: RoundEvent) -> None:
        """Rows of a batch that nobody named are new episodes after a reset."""
        first = event.episodes[0] if event.episodes else None
        if isinstance(first, EpisodeRow):
            ended = [name for name in self._episodes if isinstance(name, EpisodeRow) and name.reset != first.reset]
            for name in ended:
                del self._episodes[name]

    def _warn_once(self, key: str, text: str, *args: object) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning("KeyStone: " + text, *args)


def _name(episode: Hashable) -> str:
    return f"row {episode.row}" if isinstance(episode, EpisodeRow) else str(episode)


def _digits(*values: float) -> str:
    """Two decimals, or two significant digits where that shows nothing."""
    return ".2f" if all(abs(value) >= 0.05 or value == 0 for value in values) else ".2g"
