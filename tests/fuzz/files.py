"""Results and databases of all tools, damaged in every way: they are compared, or refused in one line."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from keystone_robotics.cli import main
from keystone_robotics.records import FILE

TESTS = Path(__file__).parents[1]
RUN = TESTS / "records" / "data" / "run-0.1.0"
VLA_EVAL = json.loads((TESTS / "compare" / "data" / "vla_eval.json").read_text())
LEROBOT = {
    "per_task": [
        {
            "task_group": "libero",
            "task_id": task,
            "metrics": {"successes": [True, False, True, True], "sum_rewards": [1.0] * 4},
        }
        for task in range(2)
    ],
    "overall": {"pc_success": 75.0, "eval_ep_s": 1.5},
}
SINGLE = {
    "per_episode": [{"episode_ix": number, "success": number % 2 == 0, "seed": 1000 + number} for number in range(4)],
    "aggregated": {"eval_ep_s": 2.0},
}
RESULTS = {"eval_info.json": (LEROBOT, SINGLE), "LIBERO_aggregate.json": (VLA_EVAL,)}

DEEP: list[Any] = []
for _ in range(500):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**64, 10**400, 0.5, float("nan"), float("inf"), 1e308, "", "\x1b]0;x\x07", "\x1b[2J", "\ud800",
    "\u202e", "a\nb\rc", "[red]", "[/]", "9" * 5000, [], {}, [[]], {"a": 1}, DEEP,
)  # fmt: skip
QUERIES = (
    "UPDATE episodes SET {column} = ? WHERE rowid % 3 = 0", "UPDATE rounds SET {column} = ?", "UPDATE meta SET value = ?",
)  # fmt: skip
COLUMNS = (
    "arm", "task", "repeat", "episode", "success", "initial_state", "initial_seed", "noise_seed", "latency_ms", "error",
)  # fmt: skip
STATEMENTS = (
    "DROP TABLE episodes", "DELETE FROM episodes", "PRAGMA user_version = 99", "PRAGMA user_version = -1",
    "CREATE VIEW v AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
    "CREATE TRIGGER t AFTER UPDATE ON meta BEGIN SELECT 1; END", "ALTER TABLE episodes ADD COLUMN more TEXT DEFAULT 'x'",
    "ALTER TABLE episodes RENAME TO others", "UPDATE meta SET value = '" + "[" * 5000 + "'",
)  # fmt: skip


def compare(path: Path) -> None:
    """Run the command; nothing but an exit code, lines that print, and no traceback."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["compare", str(path), *([] if path.is_dir() and (path / FILE).exists() else [str(path)])])
    assert code in (0, 2), code
    for text in (out.getvalue(), err.getvalue()):
        assert all(line.isprintable() for line in text.split("\n")), f"not printable: {text[:300]!r}"
    assert code == 0 or err.getvalue().count("\n") == 1, f"several lines: {err.getvalue()[:300]!r}"


def damage(generator: np.random.Generator, document: Any) -> Any:
    """A copy of a JSON document with one of its values replaced."""
    document = copy.deepcopy(document)
    place, key = [document], 0
    while isinstance(place[key], (dict, list)) and place[key] and generator.random() < 0.85:
        place = place[key]
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = keys[generator.integers(len(keys))]
    if generator.random() < 0.1 and isinstance(place, dict):
        place.pop(key)
    else:
        place[key] = VALUES[generator.integers(len(VALUES))]
    return document


def damage_bytes(generator: np.random.Generator, path: Path) -> None:
    """Overwrite or cut off some bytes of a file."""
    content = bytearray(path.read_bytes())
    for _ in range(generator.integers(1, 8)):
        place = int(generator.integers(len(content)))
        content[place : place + int(generator.integers(1, 9))] = generator.bytes(int(generator.integers(0, 9)))
    path.write_bytes(content[: int(generator.integers(len(content) + 1))] if generator.random() < 0.2 else content)


def attack_readers(generator: np.random.Generator) -> int:
    name = list(RESULTS)[generator.integers(len(RESULTS))]
    documents = RESULTS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        document = damage(generator, documents[generator.integers(len(documents))])
        path.write_text(json.dumps(document))
        if generator.random() < 0.2:
            damage_bytes(generator, path)
        compare(path)
    return 1


def attack_stores(generator: np.random.Generator) -> int:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        shutil.copytree(RUN, run)
        if generator.random() < 0.3:
            damage_bytes(generator, run / FILE)
        else:
            with (
                contextlib.closing(sqlite3.connect(run / FILE)) as database,
                contextlib.suppress(sqlite3.Error, OverflowError, UnicodeError),
            ):
                query = QUERIES[generator.integers(len(QUERIES))].format(
                    column=COLUMNS[generator.integers(len(COLUMNS))]
                )
                value = VALUES[generator.integers(len(VALUES))]
                plain = value if isinstance(value, (int, float, str, type(None))) else json.dumps(value)
                database.execute(query, (plain if generator.random() < 0.9 else generator.bytes(20),))
                if generator.random() < 0.3:
                    database.execute(STATEMENTS[generator.integers(len(STATEMENTS))])
                database.commit()
        if generator.random() < 0.2:
            settings = damage(generator, json.loads((run / "settings.json").read_text()))
            (run / "settings.json").write_text(json.dumps(settings))
        compare(run)
    return 1
