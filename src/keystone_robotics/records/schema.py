"""The SQLite schema of a run: tables, version and migrations. SQL that defines tables is in this file only.

The version is SQLite's ``PRAGMA user_version``. KeyStone 0.1.0 wrote version 2 as a row of the table ``meta`` instead.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

VERSION = 6

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE sessions (begun TEXT NOT NULL, versions TEXT NOT NULL);
CREATE TABLE episodes (
    arm TEXT NOT NULL, task TEXT NOT NULL, repeat INTEGER NOT NULL, episode INTEGER NOT NULL,
    success INTEGER NOT NULL, steps INTEGER NOT NULL, rounds INTEGER NOT NULL,
    initial_state TEXT NOT NULL, initial_seed INTEGER NOT NULL, noise_seed TEXT NOT NULL,
    consensus REAL, latency_ms REAL, error TEXT, dispersion REAL, median_distance REAL, checksum INTEGER,
    drawn REAL,
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
    dispersion REAL, median_distance REAL, checksum INTEGER, space TEXT, window TEXT,
    PRIMARY KEY (arm, task, repeat, episode, round)
);
"""


class UnknownVersion(Exception):
    """The database has a version that this code cannot read.

    Attributes:
        version: of the database; None if it has none.
    """

    def __init__(self, version: int | None) -> None:
        super().__init__(version)
        self.version = version


def create(database: sqlite3.Connection) -> None:
    """Create the tables, inside the caller's transaction."""
    for statement in _TABLES.split(";"):
        database.execute(statement)
    _set_version(database, VERSION)


def check(database: sqlite3.Connection) -> int:
    """The version of a database, after checking that it is intact and that `Store` can read it.

    All versions are read by the same code: columns are read by name, and those added since are None.

    Raises:
        sqlite3.DatabaseError: if it is damaged or holds something else.
        UnknownVersion: if it is newer than this code, or older than every migration.
    """
    _check_tables(database)
    problems = [row[0] for row in database.execute("PRAGMA quick_check")]
    if problems != ["ok"]:
        raise sqlite3.DatabaseError(problems[0].splitlines()[-1])  # the first line may be a heading
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        row = database.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        version = int(row[0]) if row and row[0] in map(str, MIGRATIONS) else None
    if version != VERSION and version not in MIGRATIONS:
        raise UnknownVersion(version)
    return int(version)


def _check_tables(database: sqlite3.Connection) -> None:
    """Nothing but plain tables and their indexes: a view, a trigger or a computed column is a program from outside."""
    entries = database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    for kind, name, statement in entries:
        computed = database.execute("SELECT 1 FROM pragma_table_xinfo(?) WHERE hidden <> 0", (name,)).fetchall()
        if kind not in ("table", "index") or "VIRTUAL" in str(statement).upper().split()[:2] or computed:
            raise sqlite3.DatabaseError(f"it holds more than tables: the {kind} {name!r}")
    if not {"meta", "episodes", "shards", "rounds"} <= {name for kind, name, _ in entries if kind == "table"}:
        raise sqlite3.DatabaseError("its tables are missing")


def migrate(database: sqlite3.Connection) -> None:
    """Bring a database to `VERSION`, in one transaction."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        for version in range(check(database), VERSION):
            MIGRATIONS[version](database)
            _set_version(database, version + 1)


def _add_dispersion(database: sqlite3.Connection) -> None:
    for table in ("episodes", "rounds"):
        for column in ("dispersion", "median_distance"):
            database.execute(f"ALTER TABLE {table} ADD COLUMN {column} REAL")
    database.execute("DELETE FROM meta WHERE key = 'schema'")


def _add_checksum(database: sqlite3.Connection) -> None:
    for table in ("episodes", "rounds"):  # None in the rows that are there
        database.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")


def _add_space(database: sqlite3.Connection) -> None:
    for column in ("space", "window"):
        database.execute(f"ALTER TABLE rounds ADD COLUMN {column} TEXT")


def _add_drawn(database: sqlite3.Connection) -> None:
    database.execute("ALTER TABLE episodes ADD COLUMN drawn REAL")


#: From a version to the next.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {
    2: _add_dispersion, 3: _add_checksum, 4: _add_space, 5: _add_drawn,
}  # fmt: skip


def _set_version(database: sqlite3.Connection, version: int) -> None:
    database.execute(f"PRAGMA user_version = {version}")
