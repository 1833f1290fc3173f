"""A run that KeyStone 0.1.0 wrote (schema 2): it opens and compares as before, is migrated when resumed, and not otherwise.

``data/run-0.1.0`` was written by 0.1.0's ``keystone eval --policy policy --env 'toy:Toy?folder=.' --tasks reach step-fails
--episodes 6 --shard 3 --repeats 2 --arm first --arm keystone:k=4 --keep-rounds``, and ``data/compare-0.1.0.json`` by its
``keystone compare run --json``.
"""

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from keystone_robotics.cli import main
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import config_from, read_yaml
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.records import FILE, Store, schema
from toy import table

DATA = Path(__file__).parent / "data"


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the run, in a working directory as it was then."""
    shutil.copytree(DATA / "run-0.1.0", tmp_path / "run")
    shutil.copytree(DATA / "policy", tmp_path / "policy")
    monkeypatch.chdir(tmp_path)
    return Path("run")


def version(folder):
    return sqlite3.connect(folder / FILE).execute("PRAGMA user_version").fetchone()[0]


def settings(**given):
    stored = {
        name: value for name, value in read_yaml(DATA / "run-0.1.0" / "settings.json").items() if name != "versions"
    }
    stored["allow_untrained_tasks"] = stored.pop("any_task")
    return config_from({**stored, **given})


def test_it_compares_as_before_without_being_written_to(old, capsys):
    (old / FILE).chmod(0o444)
    before = (old / FILE).read_bytes()
    assert main(["compare", str(old), "--json", "now.json"]) == 0
    assert json.loads(Path("now.json").read_text()) == json.loads((DATA / "compare-0.1.0.json").read_text())
    assert capsys.readouterr().out.strip() == (DATA / "compare-0.1.0.txt").read_text().strip()
    assert (old / FILE).read_bytes() == before
    assert [path.name for path in old.iterdir() if path.name.startswith(FILE)] == [FILE]


def test_its_rounds_can_be_read(old):
    with Store(old) as store:
        for one in store.episodes():
            rounds = store.rounds(one.key)
            assert one.error or len(rounds) == one.rounds
            assert all(kept.candidates.shape == (4 if one.arm != "first" else 1, 6, 2) for kept in rounds)
            assert (one.dispersion, one.median_distance) == (None, None)
            assert all((kept.dispersion, kept.median_distance) == (None, None) for kept in rounds)
    assert version(old) == 0


def test_it_is_migrated_and_resumed(old, tmp_path):
    before = table(old)
    evaluation = evaluate(settings(episodes=9), old)
    assert version(old) == schema.VERSION
    assert evaluation.new == 24
    now = table(old)
    assert [one for one in now if one.episode < 6] == before
    new = [one for one in now if one.episode >= 6]
    assert all(one.dispersion is not None for one in new if one.arm != "first" and one.rounds)
    evaluate(settings(episodes=9), tmp_path / "afresh")
    fresh = table(tmp_path / "afresh")
    assert [one for one in fresh if one.episode >= 6] == new
    outcome = dict.fromkeys(("consensus", "dispersion", "median_distance", "drawn", "error"))
    assert [replace(one, **outcome) for one in fresh] == [replace(one, **outcome) for one in now], "0.1.0 did the same"


def test_a_migration_that_fails_changes_nothing(old, monkeypatch):
    def fail(database):
        schema._add_dispersion(database)
        raise sqlite3.OperationalError("disk I/O error")

    before = table(old)
    with monkeypatch.context() as patch:
        patch.setitem(schema.MIGRATIONS, 2, fail)
        with Store(old) as store, pytest.raises(KeystoneError, match="disk I/O error"):
            store.claim(store.identity())
    assert version(old) == 0
    assert table(old) == before
    with Store(old) as store:
        store.claim(store.identity())
    assert version(old) == schema.VERSION
    assert table(old) == before


def test_a_migrated_database_has_the_columns_of_a_new_one(old, tmp_path):
    with Store(old) as store, Store(tmp_path / "new") as new:
        store.claim(store.identity())
        new.claim({})
        for name in ("meta", "sessions", "episodes", "shards", "rounds"):
            columns = [
                sorted(row[1:4] for row in one.database.execute(f"PRAGMA table_info({name})")) for one in (store, new)
            ]
            assert columns[0] == columns[1]
