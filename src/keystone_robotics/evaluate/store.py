"""Episodes on disk: one SQLite file in the folder of a run, written as work finishes, whatever happens to the process."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import Shard
from keystone_robotics.evaluate.lock import FolderLock
from keystone_robotics.evaluate.results import RoundRecord, ShardResult

FILE = "episodes.sqlite"
SCHEMA = 2

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE sessions (begun TEXT NOT NULL, versions TEXT NOT NULL);
CREATE TABLE episodes (
    arm TEXT NOT NULL, task TEXT NOT NULL, repeat INTEGER NOT NULL, episode INTEGER NOT NULL,
    success INTEGER NOT NULL, steps INTEGER NOT NULL, rounds INTEGER NOT NULL,
    initial_state TEXT NOT NULL, initial_seed INTEGER NOT NULL, noise_seed TEXT NOT NULL,
    consensus REAL, latency_ms REAL, error TEXT,
    PRIMARY KEY (arm, task, repeat, episode)
);
CREATE TABLE shards (
    arm TEXT NOT NULL, task TEXT NOT NULL, repeat INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (arm, task, repeat, first)
);
CREATE TABLE rounds (
    arm TEXT NOT NULL, task TEXT NOT NULL, repeat INTEGER NOT NULL, episode INTEGER NOT NULL, round INTEGER NOT NULL,
    step INTEGER NOT NULL, chosen INTEGER NOT NULL, synthesised INTEGER NOT NULL, consensus REAL NOT NULL,
    spread REAL NOT NULL, candidates BLOB NOT NULL, labels BLOB NOT NULL, actions BLOB NOT NULL,
    PRIMARY KEY (arm, task, repeat, episode, round)
);
"""


@dataclass(frozen=True)
class EpisodeRow:
    """An episode as it is stored; the fields are those of `EpisodeResult`, with the arm, task and repeat it belongs to."""

    arm: str
    task: str
    repeat: int
    episode: int
    success: bool
    steps: int
    rounds: int
    initial_state: str
    initial_seed: int
    noise_seed: int
    consensus: float | None
    latency_ms: float | None
    error: str | None


class Store:
    """The episodes of one run. ``with Store(folder) as store: …``; to write, `claim` it first.

    Every shard is one transaction: a process that is killed loses the shards it was working on, and nothing else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE
        self._lock: FolderLock | None = None
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file and of the lock."""
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def lock(self) -> None:
        """Keep others from working in the same folder, which is made if it is not there.

        Raises:
            KeystoneError: if somebody else works there.
        """
        if self._lock is None:
            self._lock = FolderLock(self.folder)

    def claim(self, identity: dict[str, Any]) -> None:
        """Make the store, or open the one that is there, and keep others from working in the same folder.

        Raises:
            KeystoneError: if somebody else works there, if it holds another evaluation, or if it is damaged.
        """
        self.lock()
        with self._speaking_plainly():
            if self._is_empty():
                self._make(identity)
        self._take_over(identity)
        before = self.identity()
        changed = [name for name in identity if before.get(name) != identity[name]]
        if changed:
            what = "; ".join(f"{name} was {before.get(name)!r}, now {identity[name]!r}" for name in changed)
            raise KeystoneError(
                f"{self.folder} holds another evaluation ({what}). Give another --out; arms, tasks, episodes and repeats may "
                "be added to this one"
            )

    def _take_over(self, identity: dict[str, Any]) -> None:
        """An evaluation that never got anywhere, because of a wrong device, say, may still become another one."""
        with self._speaking_plainly(), self.database as database:
            database.execute(
                "UPDATE meta SET value = ? WHERE key = 'identity' AND NOT EXISTS (SELECT 1 FROM episodes)",
                (json.dumps(identity),),
            )

    def _connect(self) -> sqlite3.Connection:
        """Where nothing can be locked, SQLite must not try to either."""
        if self._lock is not None and not self._lock.works:
            return sqlite3.connect(f"{self.path.resolve().as_uri()}?nolock=1", uri=True)
        return sqlite3.connect(self.path, timeout=30.0)

    def _is_empty(self) -> bool:
        """Nothing is there yet, or what a process left that was killed while it made the tables."""
        if not self.path.exists():
            return True
        with contextlib.closing(self._connect()) as database:
            return not database.execute("SELECT 1 FROM sqlite_master").fetchall()

    def _make(self, identity: dict[str, Any]) -> None:
        database = self._connect()
        with contextlib.closing(database), database:
            database.executescript("BEGIN;" + _TABLES)
            database.executemany(
                "INSERT INTO meta VALUES (?, ?)", [("schema", str(SCHEMA)), ("identity", json.dumps(identity))]
            )

    @property
    def database(self) -> sqlite3.Connection:
        """The open file, checked when it was opened."""
        if self._database is None:
            if not self.path.is_file():
                raise KeystoneError(f"{self.folder} holds no {FILE}: expected the folder of a `keystone eval`")
            with self._speaking_plainly():
                database = self._connect()
                problems = [row[0] for row in database.execute("PRAGMA quick_check")]
                if problems != ["ok"]:
                    raise sqlite3.DatabaseError(problems[0])
                tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
                if not {"meta", "episodes", "shards", "rounds"} <= tables:  # what every schema has
                    raise sqlite3.DatabaseError("its tables are missing")
                schema = database.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
            if schema != (str(SCHEMA),):
                raise KeystoneError(f"{self.path} was written by another version of KeyStone (schema {schema})")
            self._database = database
        return self._database

    @contextlib.contextmanager
    def _speaking_plainly(self) -> Iterator[None]:
        """What SQLite complains about, in words that say what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise KeystoneError(
                f"cannot write to {self.path}: {error}. What was stored before is safe; the same command goes on from there"
            ) from error
        except sqlite3.DatabaseError as error:
            raise KeystoneError(
                f"{self.path} is damaged or no store of KeyStone's ({error}). It was left as it is: move it away, or save what "
                f"can be saved with `sqlite3 {self.path} .recover`"
            ) from error

    def identity(self) -> dict[str, Any]:
        """What the run was claimed with."""
        with self._speaking_plainly():
            row = self.database.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
        identity: dict[str, Any] = json.loads(row[0]) if row else {}
        return identity

    def add_arms(self, arms: Sequence[str]) -> list[str]:
        """Note that these are wanted; returns all that ever were, in the order in which they were first asked for."""
        with self._speaking_plainly(), self.database as database:
            row = database.execute("SELECT value FROM meta WHERE key = 'arms'").fetchone()
            known: list[str] = json.loads(row[0]) if row else []
            known += [arm for arm in arms if arm not in known]
            database.execute("INSERT OR REPLACE INTO meta VALUES ('arms', ?)", (json.dumps(known),))
        return known

    def add_session(self, versions: Mapping[str, str]) -> None:
        """Note that from now on episodes are rolled out with these versions of packages."""
        begun = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        with self._speaking_plainly(), self.database as database:
            database.execute("INSERT INTO sessions VALUES (?, ?)", (begun, json.dumps(dict(versions))))

    def sessions(self) -> list[tuple[str, dict[str, str]]]:
        """When episodes were rolled out, and with which versions of packages; the earliest first."""
        with self._speaking_plainly():
            rows = self.database.execute("SELECT begun, versions FROM sessions ORDER BY rowid").fetchall()
        return [(begun, json.loads(versions)) for begun, versions in rows]

    def add(self, result: ShardResult) -> None:
        """Store a shard, in one transaction. Episodes that are there already stay as they are, and so do their rounds."""
        arm, shard = str(result.shard.arm), result.shard
        key = (arm, shard.task, shard.repeat)
        with self._speaking_plainly():
            stored = {
                row[0]
                for row in self.database.execute(
                    "SELECT episode FROM episodes WHERE arm = ? AND task = ? AND repeat = ?", key
                )
            }
        fresh = [one for one in result.episodes if one.episode not in stored]
        episodes = [
            (*key, one.episode, one.success, one.steps, one.rounds, one.initial_state, one.initial_seed,
             str(one.noise_seed), one.consensus, one.latency_ms, one.error)
            for one in fresh
        ]  # fmt: skip
        rounds = [
            (*key, one.episode, kept.number, kept.step, kept.index, kept.synthesised, kept.consensus, kept.spread,
             _pack(kept.candidates), _pack(kept.labels), _pack(kept.actions))
            for one in fresh
            for kept in one.kept
        ]  # fmt: skip
        with self._speaking_plainly(), self.database as database:
            database.executemany("INSERT INTO episodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", episodes)
            database.executemany("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rounds)
            database.execute(
                "INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?, ?)",
                (*key, shard.first, shard.count, result.seconds),
            )

    def forget_errors(self, shards: Sequence[Shard]) -> int:
        """Remove the shards' episodes that ended with an error, so that they are rolled out again; returns how many."""
        wanted = {(str(shard.arm), shard.task, shard.repeat, episode) for shard in shards for episode in shard.episodes}
        where = "WHERE arm = ? AND task = ? AND repeat = ? AND episode = ?"
        with self._speaking_plainly(), self.database as database:
            rows = database.execute("SELECT arm, task, repeat, episode FROM episodes WHERE error IS NOT NULL")
            failed = [row for row in rows if row in wanted]
            for table in ("episodes", "rounds"):
                database.executemany(f"DELETE FROM {table} {where}", failed)  # noqa: S608 (both are ours)
        return len(failed)

    def missing(self, shards: Sequence[Shard]) -> list[Shard]:
        """Those of the shards of which an episode is not stored."""
        with self._speaking_plainly():
            stored = set(self.database.execute("SELECT arm, task, repeat, episode FROM episodes"))
        return [
            shard
            for shard in shards
            if any((str(shard.arm), shard.task, shard.repeat, episode) not in stored for episode in shard.episodes)
        ]

    def episodes(self) -> list[EpisodeRow]:
        """All of them, in order."""
        with self._speaking_plainly():
            cursor = self.database.execute("SELECT * FROM episodes ORDER BY arm, task, repeat, episode")
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        return [
            EpisodeRow(**{**row, "success": bool(row["success"]), "noise_seed": int(row["noise_seed"])}) for row in rows
        ]

    def rounds(self, arm: str, task: str, repeat: int, episode: int) -> list[RoundRecord]:
        """The rounds of an episode, where they were kept."""
        query = (
            "SELECT round, step, candidates, labels, chosen, synthesised, consensus, spread, actions FROM rounds "
            "WHERE arm = ? AND task = ? AND repeat = ? AND episode = ? ORDER BY round"
        )
        with self._speaking_plainly():
            rows = self.database.execute(query, (arm, task, repeat, episode)).fetchall()
        return [
            RoundRecord(
                number,
                step,
                _unpack(candidates),
                _unpack(labels),
                chosen,
                bool(made),
                consensus,
                spread,
                _unpack(actions),
            )
            for number, step, candidates, labels, chosen, made, consensus, spread, actions in rows
        ]


def _pack(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _unpack(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)
