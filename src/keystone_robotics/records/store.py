"""The episodes of a run in one SQLite file, written as shards finish."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import math
import sqlite3
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import atomic_write
from keystone_robotics.option_values import check_space, write_space
from keystone_robotics.records import schema
from keystone_robotics.records.episode import EpisodeKey, EpisodeRecord, RoundRecord
from keystone_robotics.records.lock import FolderLock
from keystone_robotics.select import ActionSpace

if TYPE_CHECKING:
    from keystone_robotics.sample.adapter import Window

FILE = "episodes.sqlite"

#: After this time a query of a run that is only read ends with an error.
READING_SECONDS = 300.0

_number, _whole = (int, float, type(None)), (int, type(None))
#: What a row of the table ``episodes`` holds.
_TYPES: dict[str, Any] = {
    "arm": str, "task": str, "repeat": int, "episode": int, "success": int, "steps": int, "rounds": int,
    "initial_state": str, "initial_seed": _whole, "noise_seed": str, "consensus": _number, "latency_ms": _number,
    "error": (str, type(None)), "dispersion": _number, "median_distance": _number, "drawn": _number,
}  # fmt: skip
#: What a row of the table ``rounds`` holds.
_ROUND_TYPES: dict[str, Any] = {
    "round": int, "step": int, "chosen": int, "synthesised": int, "consensus": (int, float), "spread": (int, float),
    "candidates": bytes, "labels": bytes, "actions": bytes, "dispersion": _number, "median_distance": _number,
    "space": (str, type(None)), "window": (str, type(None)),
}  # fmt: skip

_KEY = "arm = ? AND task = ? AND repeat = ? AND episode = ?"


def check_run(folder: Path) -> None:
    """Raise a KeystoneError if a folder is none of a run."""
    if not (folder / FILE).is_file():
        raise KeystoneError(f"{folder} holds no {FILE}: expected the folder of a `keystone eval`")


class Store:
    """The episodes of one run. ``with Store(folder) as store: …``; call `claim` before writing.

    A shard is one transaction: a process that is killed loses the shards it was working on and nothing else. Reading does
    not write, so a run on a read-only disk can be compared; older schemas are migrated by `claim`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE
        self._lock: FolderLock | None = None
        self._database: sqlite3.Connection | None = None
        self._reads_until = math.inf  # of the query that runs

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release the lock."""
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def lock(self) -> None:
        """Create the folder if needed, and keep other evaluations from writing to it.

        Raises:
            KeystoneError: if another evaluation is running there.
        """
        if self._lock is None:
            lock = FolderLock(self.folder)
            self.close()  # a connection that only reads
            self._lock = lock

    def claim(self, identity: dict[str, Any]) -> None:
        """Open the store for writing: lock the folder, create or migrate the database, compare the identity.

        Raises:
            KeystoneError: if another evaluation is running there, the store holds another evaluation, or it is damaged.
        """
        self.lock()
        with self._translate_sqlite_errors():
            if not self.path.exists():
                self._create(identity)
            elif self._is_empty():
                raise KeystoneError(
                    f"{self.path} is empty: what was stored there is lost. Restore it, or delete it to begin a new run"
                )
            schema.migrate(self.database)
            with self.database as database:  # a run without any episode may be claimed with other settings
                database.execute(
                    "UPDATE meta SET value = ? WHERE key = 'identity' AND NOT EXISTS (SELECT 1 FROM episodes)",
                    (json.dumps(identity),),
                )
        before = self.identity()
        changed = [name for name in identity if before.get(name) != identity[name]]
        if changed:
            what = "; ".join(f"{name} was {before.get(name)!r}, now {identity[name]!r}" for name in changed)
            raise KeystoneError(
                f"{self.folder} holds another evaluation ({what}). Give another --out; only arms, tasks, episodes and repeats "
                "can be added to this one"
            )

    def _connect(self, path: Path | None = None) -> sqlite3.Connection:
        """Where the folder cannot be locked, SQLite must not try to lock its file. The file may be of unknown origin: its
        schema is not trusted, without `claim` nothing is written, and no query takes for ever.
        """
        path = path or self.path
        if self._lock is not None and not self._lock.works:
            database = sqlite3.connect(f"{path.resolve().as_uri()}?nolock=1", uri=True)
        else:
            database = sqlite3.connect(path, timeout=30.0)
        database.execute("PRAGMA trusted_schema = OFF")
        if self._lock is None:
            # Not mode=ro: what a killed process left in its journal must be rolled back first.
            database.execute("PRAGMA query_only = ON")
            database.set_progress_handler(lambda: time.monotonic() > self._reads_until, 100_000)
        return database

    def _is_empty(self) -> bool:
        with contextlib.closing(self._connect()) as database:
            return not database.execute("SELECT 1 FROM sqlite_master").fetchall()

    def _create(self, identity: dict[str, Any]) -> None:
        """All at once: a process that is killed leaves no half of a database, so that an empty file is a damaged one."""
        with atomic_write(self.path) as draft:
            database = self._connect(draft)
            with contextlib.closing(database), database:
                database.execute("BEGIN IMMEDIATE")
                schema.create(database)
                database.execute("INSERT INTO meta VALUES ('identity', ?)", (json.dumps(identity),))

    @property
    def database(self) -> sqlite3.Connection:
        """The connection; the file is checked when it is opened."""
        if self._database is None:
            check_run(self.folder)
            with self._translate_sqlite_errors():
                database = self._connect()
                schema.check(database)
            self._database = database
        return self._database

    @contextlib.contextmanager
    def _translate_sqlite_errors(self) -> Iterator[None]:
        """SQLite's errors as a KeystoneError that says what to do."""
        self._reads_until = time.monotonic() + READING_SECONDS
        try:
            yield
        except schema.UnknownVersion as error:
            raise KeystoneError(
                f"{self.path} was written by another version of KeyStone: its schema is {error.version}, this version reads "
                f"{min(schema.MIGRATIONS)} to {schema.VERSION}"
            ) from None
        except UnicodeDecodeError:  # SQLite's message quotes the damaged bytes
            raise KeystoneError(f"{self.path} is damaged: a name in it is not UTF-8") from None
        except sqlite3.OperationalError as error:
            if str(error) == "interrupted":
                raise KeystoneError(f"{self.path} was not read within {READING_SECONDS:.0f} s") from None
            if "decode" in str(error):
                raise KeystoneError(
                    f"{self.path} is damaged: a row of the table holds text that is not UTF-8"
                ) from None
            raise KeystoneError(
                f"cannot write to {self.path}: {error}. Stored episodes are safe; run the same command again to resume"
            ) from error
        except sqlite3.DatabaseError as error:
            reason = " ".join(str(error).split())  # it may quote a table's definition, which has several lines
            raise KeystoneError(
                f"{self.path} is damaged or not a KeyStone database ({reason}). It was not changed: move it away, or recover "
                f"what is readable with `sqlite3 {self.path} .recover`"
            ) from error

    def identity(self) -> dict[str, Any]:
        """The settings that the run was claimed with."""
        with self._translate_sqlite_errors():
            row = self.database.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
        with self._translate_wrong_values("meta"):
            identity: dict[str, Any] = dict(json.loads(row[0])) if row else {}
        return identity

    def add_arms(self, arms: Sequence[str]) -> list[str]:
        """Register arms; returns all arms ever registered, in order of first registration."""
        with self._translate_sqlite_errors(), self.database as database:
            row = database.execute("SELECT value FROM meta WHERE key = 'arms'").fetchone()
            known: list[str] = json.loads(row[0]) if row else []
            known += [arm for arm in arms if arm not in known]
            database.execute("INSERT OR REPLACE INTO meta VALUES ('arms', ?)", (json.dumps(known),))
        return known

    def note(self, key: str, value: str) -> None:
        """Remember a text about the run."""
        with self._translate_sqlite_errors(), self.database as database:
            database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"note {key}", value))

    def noted(self, key: str) -> str | None:
        """What `note` remembered, or None."""
        with self._translate_sqlite_errors():
            row = self.database.execute("SELECT value FROM meta WHERE key = ?", (f"note {key}",)).fetchone()
        return None if row is None else str(row[0])

    def add_session(self, versions: Mapping[str, str]) -> None:
        """Record the package versions that the following episodes are rolled out with."""
        begun = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        with self._translate_sqlite_errors(), self.database as database:
            database.execute("INSERT INTO sessions VALUES (?, ?)", (begun, json.dumps(dict(versions))))

    def sessions(self) -> list[tuple[str, dict[str, str]]]:
        """Start time (ISO 8601, UTC) and package versions of each session, earliest first."""
        with self._translate_sqlite_errors():
            rows = self.database.execute("SELECT begun, versions FROM sessions ORDER BY rowid").fetchall()
        return [(begun, json.loads(versions)) for begun, versions in rows]

    def add_shard(self, episodes: Sequence[EpisodeRecord], seconds: float) -> None:
        """Store the episodes of a shard in one transaction. Episodes stored before are kept, with their rounds.

        Args:
            episodes: of one arm, task and repeat, in order.
            seconds: time taken by the shard.
        """
        arm, task, repeat, first = episodes[0].key
        with self._translate_sqlite_errors(), self.database as database:
            query = "SELECT episode FROM episodes WHERE arm = ? AND task = ? AND repeat = ?"
            stored = {row[0] for row in database.execute(query, (arm, task, repeat))}
            for one in (one for one in episodes if one.episode not in stored):
                _insert(database, "episodes", _episode_row(one))
                for kept in one.kept_rounds:
                    _insert(database, "rounds", _round_row(one.key, kept))
            database.execute(
                "INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?, ?)",
                (arm, task, repeat, first, len(episodes), seconds),
            )

    def delete_errors(self, keys: Collection[EpisodeKey]) -> int:
        """Delete those of the episodes that ended with an error, so that they are rolled out again; returns how many."""
        with self._translate_sqlite_errors(), self.database as database:
            rows = database.execute("SELECT arm, task, repeat, episode FROM episodes WHERE error IS NOT NULL")
            failed = [row for row in rows if row in keys]
            for table in ("episodes", "rounds"):
                database.executemany(f"DELETE FROM {table} WHERE {_KEY}", failed)  # noqa: S608 (both are constants)
        return len(failed)

    def keys(self) -> set[EpisodeKey]:
        """The keys of all stored episodes."""
        with self._translate_sqlite_errors():
            return set(self.database.execute("SELECT arm, task, repeat, episode FROM episodes"))

    def episodes(self) -> list[EpisodeRecord]:
        """All stored episodes, sorted by key, without their rounds."""
        rows = self._select("SELECT * FROM episodes ORDER BY arm, task, repeat, episode")
        with self._translate_wrong_values("episodes"):
            return [_episode(row) for row in rows]

    def rounds(self, key: EpisodeKey) -> list[RoundRecord]:
        """The rounds of an episode, if they were stored (``keep_rounds``)."""
        rows = self._select(f"SELECT * FROM rounds WHERE {_KEY} ORDER BY round", key)  # noqa: S608
        with self._translate_wrong_values("rounds"):
            return [_round(row) for row in rows]

    @contextlib.contextmanager
    def _translate_wrong_values(self, table: str) -> Iterator[None]:
        """What is in a table but was never written by a `Store`, as a KeystoneError."""
        try:
            yield
        except (TypeError, ValueError, KeyError, OverflowError, RecursionError, EOFError) as error:
            raise KeystoneError(
                f"{self.path} is damaged: a row of the table {table} does not hold what was stored ({error})"
            ) from None

    def has_rounds(self, key: EpisodeKey) -> bool:
        """Whether rounds of an episode are stored."""
        with self._translate_sqlite_errors():
            return self.database.execute(f"SELECT 1 FROM rounds WHERE {_KEY} LIMIT 1", key).fetchone() is not None  # noqa: S608

    def _select(self, query: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Rows by column name: columns that an older schema does not have are absent."""
        with self._translate_sqlite_errors():
            cursor = self.database.execute(query, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]


def _episode(row: Mapping[str, Any]) -> EpisodeRecord:
    _check_row(row, _TYPES)
    known = {name: row[name] for name in _TYPES if name in row}
    success = bool(row["success"] and row["error"] is None)
    return EpisodeRecord(**{**known, "success": success, "noise_seed": int(row["noise_seed"])})


def _round(row: Mapping[str, Any]) -> RoundRecord:
    _check_row(row, _ROUND_TYPES)
    record = RoundRecord(
        number=row["round"],
        step=row["step"],
        candidates=_unpack(row["candidates"]),
        labels=_unpack(row["labels"]),
        index=row["chosen"],
        synthesised=bool(row["synthesised"]),
        consensus=row["consensus"],
        spread=row["spread"],
        actions=_unpack(row["actions"]),
        dispersion=row.get("dispersion"),
        median_distance=row.get("median_distance"),
        space=_read_space(row.get("space")),
        window=_read_window(row.get("window")),
    )
    _check_round(record)
    return record


def _check_round(one: RoundRecord) -> None:
    """Raise if the arrays of a round do not fit together."""
    candidates, labels = one.candidates, one.labels
    if candidates.dtype.kind != "f" or candidates.ndim != 3 or not candidates.size:
        raise ValueError(f"candidates are {candidates.dtype} of shape {candidates.shape}")
    if labels.dtype.kind != "i" or labels.shape != candidates.shape[:1]:
        raise ValueError(f"labels are {labels.dtype} of shape {labels.shape}")
    if one.actions.dtype.kind not in "fiu" or not one.actions.ndim:
        raise ValueError(f"actions are {one.actions.dtype} of shape {one.actions.shape}")
    if not 0 <= one.index < len(candidates):
        raise ValueError(f"chosen is {one.index} of {len(candidates)}")
    if not np.isfinite(candidates[labels >= 0]).all():
        raise ValueError("a candidate that was not dropped is not finite")


def _check_row(row: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Raise if a row is not what was stored: SQLite keeps any type in any column, and does not notice changed bytes."""
    if row.get("checksum") is not None and row["checksum"] != _checksum(row):
        raise ValueError("its checksum does not match")
    for name, kind in types.items():
        if name in row and not isinstance(row[name], kind):
            raise TypeError(f"{name} is a {type(row[name]).__name__}")


def _checksum(row: Mapping[str, Any]) -> int:
    """Of a row as SQLite returns it. Columns that are None do not count: those of later versions are."""
    value = 0
    for name in sorted(row):
        if name != "checksum" and row[name] is not None:
            value = zlib.crc32(name.encode(), value)
            value = zlib.crc32(row[name] if isinstance(row[name], bytes) else repr(row[name]).encode(), value)
    return value


def _episode_row(one: EpisodeRecord) -> dict[str, Any]:
    row = {name: value for name, value in vars(one).items() if name != "kept_rounds"}
    return {**row, "noise_seed": str(one.noise_seed)}  # up to 64 bits: more than SQLite's signed integers hold


def _round_row(key: EpisodeKey, one: RoundRecord) -> dict[str, Any]:
    arm, task, repeat, episode = key
    return {
        "arm": arm,
        "task": task,
        "repeat": repeat,
        "episode": episode,
        "round": one.number,
        "step": one.step,
        "chosen": one.index,
        "synthesised": one.synthesised,
        "consensus": one.consensus,
        "spread": one.spread,
        "candidates": _pack(one.candidates),
        "labels": _pack(one.labels),
        "actions": _pack(one.actions),
        "dispersion": one.dispersion,
        "median_distance": one.median_distance,
        "space": None if one.space is None else json.dumps(write_space(one.space), default=list),  # a range is a list
        "window": None if one.window is None else json.dumps(asdict(one.window)),
    }


def _read_space(text: str | None) -> ActionSpace | None:
    return None if text is None else check_space("space", json.loads(text))


def _read_window(text: str | None) -> Window | None:
    if text is None:
        return None
    from keystone_robotics.sample.adapter import Window

    values = json.loads(text)
    relative = values["relative"]
    return Window(**{**values, "relative": None if relative is None else tuple(relative)})


def _insert(database: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    query = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"  # noqa: S608 (constants)
    number = database.execute(query, tuple(row.values())).lastrowid
    stored = database.execute(f"SELECT * FROM {table} WHERE rowid = ?", (number,))  # noqa: S608
    names = [column[0] for column in stored.description]
    checksum = _checksum(dict(zip(names, stored.fetchone(), strict=True)))
    database.execute(f"UPDATE {table} SET checksum = ? WHERE rowid = ?", (checksum, number))  # noqa: S608


def _pack(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _unpack(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)
