"""Writes one JSON line per round, for plots and as a record that candidates were drawn."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keystone_robotics.attachment import attach
from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle, Listener, RoundEvent
from keystone_robotics.monitor.alarm import Alarm
from keystone_robotics.spec import Spec
from keystone_robotics.view import RerunLog

#: Keys of a round's summary with one entry per row of the batch.
BY_ROW = ("index", "sizes", "consensus", "dispersion", "median_distance", "spread", "drawn")
#: Beginnings of those that are there with an adaptive horizon, and with an alarm.
OPTIONAL_BY_ROW = ("agreed_steps", "alarm")

log = logging.getLogger("keystone")


class RoundLog:
    """A listener that appends to a file; lists hold one entry per row of the batch.

    The file is opened for each line, so the log can be copied with its policy and read while it grows. If a line cannot be
    written (a full disk, a folder that was removed), this is logged once and the log ends there; rounds go on.

    >>> import tempfile, torch, keystone_robotics as keystone
    >>> class Policy(torch.nn.Module):
    ...     def act(self):
    ...         return torch.randn(1, 8, 2)
    >>> path = Path(tempfile.mkdtemp()) / "rounds.jsonl"
    >>> policy = Policy()
    >>> stop = keystone.attach(policy, k=4, rule="medoid", site="act").subscribe(RoundLog(path))
    >>> chunk = policy.act()
    >>> sorted(json.loads(path.read_text()))
    ['consensus', 'dispersion', 'drawn', 'encoding_seconds', 'index', 'k', 'median_distance', 'path', 'round', 'rule',
     'sampling_seconds', 'selection_seconds', 'sizes', 'spread']
    """

    def __init__(self, path: str | Path, alarm: Alarm | None = None) -> None:
        """Append to a file; the fields of an alarm, if one is given, which must be subscribed before."""
        self.path, self.alarm = Path(path), alarm
        self._ended = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a").close()
        except OSError as error:
            raise KeystoneError(f"the round log {self.path} cannot be written: {error.strerror}") from None

    def __call__(self, event: RoundEvent, **more: Any) -> None:
        """Append the line of a round, with further entries; nothing if the policy's own code ran (K = 1)."""
        if event.path == "own" or self._ended:
            return
        line = json.dumps({**more, **summary(event, self.alarm)}) + "\n"
        try:
            with self.path.open("a") as file:
                file.write(line)
        except OSError as error:
            self._ended = True
            log.error("KeyStone: the round log %s ends before round %d: %s", self.path, event.number, error.strerror)


def environment_listeners(environ: Mapping[str, str] = os.environ) -> list[Listener]:
    """What the environment asks for: ``KEYSTONE_ALARM=alarm.json`` an `Alarm`, ``KEYSTONE_LOG=path`` a line for every round in
    that file, ``KEYSTONE_RERUN=target`` a `keystone.RerunLog`. The alarm comes first: the others write what it says.

    Raises:
        KeystoneError: if the alarm cannot be read, the log cannot be written, or Rerun is not installed.
    """
    named = {name: environ.get(f"KEYSTONE_{name}", "").strip() for name in ("ALARM", "LOG", "RERUN")}
    alarm = Alarm.load(named["ALARM"]) if named["ALARM"] else None
    listeners: list[Listener] = [] if alarm is None else [alarm]
    if named["LOG"]:
        listeners.append(RoundLog(named["LOG"], alarm))
    if named["RERUN"]:
        listeners.append(RerunLog(named["RERUN"], alarm=alarm))
    return listeners


def attach_with_log(policy: Any, spec: Spec, environ: Mapping[str, str] = os.environ) -> Handle:
    """`keystone.attach` with the `environment_listeners`.

    Raises:
        KeystoneError: also what those raise; then nothing is attached.
    """
    listeners = environment_listeners(environ)
    handle = attach(policy, spec)
    for one in listeners:
        handle.subscribe(one)
    return handle


def summary(event: RoundEvent, alarm: Alarm | None = None) -> dict[str, Any]:
    """A round in plain numbers, with one entry of an alarm's fields per row."""
    selection, times = event.selection, event.times
    alarms = [] if alarm is None else alarm.row_fields(event)
    return {
        "round": event.number,
        "k": event.k,
        "path": event.path,
        "rule": selection.rule,
        **{name: getattr(selection, name).tolist() for name in BY_ROW},
        **({} if selection.agreed_steps is None else {"agreed_steps": selection.agreed_steps.tolist()}),
        "encoding_seconds": round(times.encode, 6),
        "sampling_seconds": round(times.sample, 6),
        "selection_seconds": round(times.select, 6),
        **({name: [one[name] for one in alarms] for name in alarms[0]} if alarms else {}),
    }


def describe_row(event: RoundEvent | None, row: int) -> dict[str, Any]:
    """One row of a round; K = 1 if nothing was selected."""
    if event is None or not event.seeds:  # the policy's own code ran
        return {"k": 1}
    selection = event.selection
    values = {name: getattr(selection, name)[row].tolist() for name in BY_ROW}
    if selection.agreed_steps is not None:
        values["agreed_steps"] = int(selection.agreed_steps[row])
    return {
        "k": event.k,
        "rule": selection.rule,
        "path": event.path,
        **values,
        "sizes": [size for size in values["sizes"] if size],
        "dropped": int(selection.dropped[row]),
        "seed": event.seeds[row] if row < len(event.seeds) else event.seeds[0],
        "sampling_ms": round(1000 * event.times.sample, 3),
        "selection_ms": round(1000 * event.times.select, 3),
    }
