"""Rounds as they happen, in Rerun's viewer or a file."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle
from keystone_robotics.sample.episodes import EpisodeRow
from keystone_robotics.sample.event import RoundEvent
from keystone_robotics.view.picture import Floats, Lanes, PathFn, Picture, draw
from keystone_robotics.view.recording import Recording
from keystone_robotics.view.sdk import import_rerun

log = logging.getLogger("keystone")

WAITING = 64  #: rounds that wait for the thread; further ones are dropped
COPIED = 1_000_000  #: bytes of candidates copied in a round; further rows of its batch are not shown
BUFFERED = 32  #: rounds of an episode in one message to a file
SECONDS = 5.0  #: until rounds are written to a file at the latest
LIVE_SECONDS = 0.1  #: until rounds are sent to a viewer
#: Recordings that are open at a time; the one without a round for the longest time is closed, and its further rounds are not
#: shown. Further rows of a batch are not shown either.
OPEN_EPISODES = 32
CLOSING_SECONDS = 10.0  #: waited for the last rounds to be sent to a viewer
FILE_CLOSING_SECONDS = 60.0  #: and to be written to a file, without which it cannot be read

SPAWN = "spawn"


class HasAlarm(Protocol):
    """A `keystone.Alarm`."""

    def row_fields(self, event: RoundEvent) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class _RowToDraw:
    """One row of a round, copied: the policy goes on while the thread draws it."""

    episode: Hashable
    at: float
    candidates: Floats
    labels: NDArray[np.int64]
    index: int
    chunk: Floats | None
    consensus: float
    dispersion: float
    start: int
    steps: int
    alarm: tuple[float, float] | None


@dataclass
class _OpenRecording:
    recording: Recording
    lanes: Lanes
    begun: float
    rounds: int = 0
    frame: int = 0
    waiting_since: float | None = None


class RerunLog:
    """A listener that shows rounds in Rerun. ``handle.subscribe(keystone.RerunLog("spawn"))``.

    A round only copies its candidates; a thread draws and sends them. If the thread is behind, rounds are left out
    (`dropped` counts them). Nothing that fails there reaches the policy: it is logged once, and the log ends.

    Every episode is a recording of its own. In files, the first is ``file.rrd``, the next ``file_1.rrd`` and so on.

    Args:
        target: "spawn" opens a viewer here; ``rerun+http://HOST:9876/proxy`` is a running one; else a file ``….rrd``.
        path: maps candidates (K, T, D), as the policy's sampler returns them, to positions (K, T, 2 or 3), or to these
            and where the gripper is closed (K, T). Without it, every dimension is drawn in a lane of its own.
        alarm: also show this alarm's score; it must be subscribed before.

    Attributes:
        dropped: rounds that were left out.
        files: written so far.

    Raises:
        KeystoneError: in one line, if Rerun is not installed, or the target is none or cannot be written.
    """

    def __init__(
        self, target: str | os.PathLike[str], *, path: PathFn | None = None, alarm: HasAlarm | None = None
    ) -> None:
        import_rerun()
        self.target, self.path, self.alarm = check_target(target), path, alarm
        self.dropped = 0
        self.files: list[Path] = []
        self._to_file = is_file(self.target)
        self._begun = 0
        if self._to_file:
            _check_writable(Path(self.target))
        self._queue: queue.Queue[list[_RowToDraw] | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._ended = False
        self._rows_left_out = False
        self._closed_early: set[Hashable] = set()  # to make room: a second file for each of their rounds has no end
        self._rounds_left_out = False
        self._episodes: OrderedDict[Hashable, _OpenRecording] = OrderedDict()
        atexit.register(_close_reference, weakref.ref(self))

    def __repr__(self) -> str:
        return f"<RerunLog to {self.target}, {self.dropped} rounds dropped>"

    def __enter__(self) -> RerunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def idle(self) -> bool:
        """Whether the thread has drawn everything that was handed to it."""
        return self._queue.unfinished_tasks == 0

    def on_subscribe(self, handle: Handle) -> None:
        """Called by `Handle.subscribe`: a reset of the policy begins an episode."""
        handle.watch_reset()

    def __call__(self, event: RoundEvent) -> None:
        """Hand a round to the thread."""
        if self._ended:
            return
        try:
            self._queue.put_nowait(self._rows(event))
        except queue.Full:
            self.dropped += 1
            return
        if self._thread is None:
            self._start()

    def close(self) -> None:
        """Send what was handed over, and end. Waits for at most 10 s, or 60 s for a file."""
        if self._ended and self._thread is None:
            return
        self._ended = True
        thread, self._thread = self._thread, None
        seconds = FILE_CLOSING_SECONDS if self._to_file else CLOSING_SECONDS
        if thread is not None and thread.is_alive():
            try:
                self._queue.put(None, timeout=seconds / 2)
                thread.join(seconds)
            except queue.Full:
                pass
            if thread.is_alive():  # it hangs in a connection or on a disk, and ends with the process
                log.warning("KeyStone: %s did not take the last rounds within %g s", self.target, seconds)
        if self.dropped:
            log.warning("KeyStone: Rerun could not keep up with %d rounds, which are not shown", self.dropped)

    # ---- in the round

    def _rows(self, event: RoundEvent) -> list[_RowToDraw]:
        selection, window, now = event.selection, event.window, time.monotonic()
        batch, k, steps, dims = event.candidates.shape
        real = dims if window is None or window.dims is None else min(window.dims, dims)
        shown = max(1, min(batch, OPEN_EPISODES, COPIED // (4 * k * steps * real)))
        if shown < batch and not self._rows_left_out:
            self._rows_left_out = True
            log.warning("KeyStone: Rerun shows the first %d of %d rows of a batch", shown, batch)
        candidates = event.candidates[:shown, ..., :real].detach().float().cpu().numpy().copy()
        chunks = _on_host(selection.chunk)[:shown, ..., :real] if selection.synthesised else None
        start, executed = (0, steps) if window is None else (window.start, window.steps)
        most = min(executed, steps - start)
        horizons = np.full(batch, most) if selection.agreed_steps is None else np.minimum(most, selection.agreed_steps)
        alarms = None if self.alarm is None else [_score_and_limit(one) for one in self.alarm.row_fields(event)]
        return [
            _RowToDraw(
                event.episodes[row] if row < len(event.episodes) else row,
                now,
                candidates[row],
                np.array(selection.labels[row], np.int64),
                int(selection.index[row]),
                None if chunks is None else np.array(chunks[row], np.float32),
                float(selection.consensus[row]),
                float(selection.dispersion[row]),
                start,
                int(horizons[row]),
                None if alarms is None else alarms[row],
            )
            for row in range(shown)
        ]

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._work, name="keystone-rerun", daemon=True)
                self._thread.start()

    # ---- in the thread

    def _work(self) -> None:
        try:
            while True:
                try:
                    rows = self._queue.get(timeout=LIVE_SECONDS)
                except queue.Empty:
                    rows = []
                if rows is None:
                    break
                for row in rows:
                    self._add(row)
                if rows:
                    self._queue.task_done()
                self._flush_due()
            while self._episodes:
                self._episodes.popitem(last=False)[1].recording.close()
        except Exception as error:
            self._ended = True
            self._episodes.clear()
            log.error("KeyStone: the log to Rerun ends, rounds go on: %s: %s", type(error).__name__, error)

    def _add(self, row: _RowToDraw) -> None:
        one = self._episodes.get(row.episode)
        if one is None and row.episode in self._closed_early:
            if not self._rounds_left_out:
                self._rounds_left_out = True
                log.warning("KeyStone: more than %d episodes at a time: Rerun does not show all of them", OPEN_EPISODES)
            return
        if one is None:
            self._close_ended(row.episode)
            one = self._episodes[row.episode] = self._begin(row)
        self._episodes.move_to_end(row.episode)
        executed = slice(row.start, row.start + row.steps)
        chunk = row.candidates[row.index] if row.chunk is None else row.chunk
        one.recording.add(
            Picture(
                number=one.rounds,
                frame=one.frame,
                seconds=row.at - one.begun,
                actions=chunk[executed],
                consensus=row.consensus,
                dispersion=row.dispersion,
                alarm=row.alarm,
                **draw(row.candidates, row.labels, row.index, row.chunk, self.path, one.lanes),
            )
        )
        one.rounds += 1
        one.frame += row.steps
        one.waiting_since = one.waiting_since or time.monotonic()
        if len(one.recording) >= BUFFERED:
            self._flush(one)

    def _begin(self, row: _RowToDraw) -> _OpenRecording:
        number, self._begun = self._begun, self._begun + 1

        def open_sink(stream: Any, shown: Any) -> None:
            if self.target == SPAWN:
                stream.spawn(default_blueprint=shown)
            elif self._to_file:
                first = Path(self.target)
                file = first if number == 0 else first.with_name(f"{first.stem}_{number}.rrd")
                stream.save(file, default_blueprint=shown)
                self.files.append(file)
            else:
                stream.connect_grpc(self.target, default_blueprint=shown)

        # Later rounds are drawn in the lanes of the first: twice its range is enough for most.
        lanes = Lanes.around([row.candidates[row.labels >= 0]], 0.5)
        recording = Recording(
            open_sink,
            f"episode {number}",
            about(len(row.candidates), self.path is None),
            lanes if self.path is None else None,
        )
        return _OpenRecording(recording, lanes, row.at)

    def _close_ended(self, episode: Hashable) -> None:
        """Rows that nobody named are over when the policy was reset."""
        over = [
            name
            for name in self._episodes
            if isinstance(name, EpisodeRow) and isinstance(episode, EpisodeRow) and name.reset != episode.reset
        ]
        for name in over:
            self._episodes.pop(name).recording.close()
        while len(self._episodes) >= OPEN_EPISODES:
            oldest, one = self._episodes.popitem(last=False)
            self._closed_early.add(oldest)
            one.recording.close()

    def _flush_due(self) -> None:
        now, limit = time.monotonic(), SECONDS if self._to_file else LIVE_SECONDS
        for one in self._episodes.values():
            if one.waiting_since is not None and now - one.waiting_since >= limit:
                self._flush(one)

    def _flush(self, one: _OpenRecording) -> None:
        one.recording.flush()
        one.waiting_since = None


def check_target(target: str | os.PathLike[str]) -> str:
    """A target as text.

    Raises:
        KeystoneError: if it is none.

    >>> check_target("rounds.rrd"), check_target("spawn")
    ('rounds.rrd', 'spawn')
    >>> check_target("127.0.0.1:9876")
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: Rerun target '127.0.0.1:9876': expected spawn, rerun+http://HOST:9876/proxy or ...
    """
    text = os.fspath(target)
    if text == SPAWN or text.startswith(("rerun+http://", "rerun+https://", "rerun://")) or text.endswith(".rrd"):
        return text
    raise KeystoneError(
        f"Rerun target {text!r}: expected spawn, rerun+http://HOST:9876/proxy or a file that ends in .rrd"
    )


def is_file(target: str) -> bool:
    """Whether a target is a file.

    >>> is_file("rounds.rrd"), is_file("spawn"), is_file("rerun+http://robot/data.rrd")
    (True, False, False)
    """
    return target.endswith(".rrd") and "://" not in target


def about(k: int, lanes: bool, chosen: str = "what is executed") -> str:
    """What the colours mean, for the reader of a recording."""
    drawn = "One lane for each action dimension, in the policy's units." if lanes else "Paths of the tool."
    return (
        f"{drawn} Thick yellow: {chosen}. Blue: the winning cluster of {k} candidates; "
        "other colours: other clusters. Where the gripper changes: a small orange dot closes it, a large light blue one opens "
        "it."
    )


def _score_and_limit(fields: dict[str, Any]) -> tuple[float, float]:
    """Of an alarm in a round; nan where it could not look at the row."""
    score, limit = (fields[name] for name in ("alarm_score", "alarm_limit"))
    return float("nan") if score is None else score, float("nan") if limit is None else limit


def _on_host(chunk: Any) -> NDArray[Any]:
    return np.asarray(chunk if isinstance(chunk, np.ndarray) else chunk.detach().float().cpu().numpy())


def _check_writable(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        raise KeystoneError(f"the recording {path} cannot be written: {error.strerror}") from None


def _close_reference(reference: weakref.ref[RerunLog]) -> None:
    one = reference()
    if one is not None:
        one.close()
