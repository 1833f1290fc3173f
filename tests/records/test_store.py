"""The store keeps what it was given, and reports what is wrong with a file or folder."""

import errno
import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keystone_robotics.errors import KeystoneError
from keystone_robotics.records import FILE, EpisodeRecord, RoundRecord, Store, schema
from keystone_robotics.records import store as store_module

ARM = "keystone:k=4"


def a_round(number):
    random = np.random.default_rng(number)
    return RoundRecord(
        number=number,
        step=8 * number,
        candidates=random.normal(size=(4, 6, 2)).astype(np.float32),
        labels=np.array([0, 1, -1, 0]),
        index=3,
        synthesised=number == 1,
        consensus=0.75,
        spread=0.5,
        actions=random.normal(size=(3, 2)).astype(np.float32),
        dispersion=0.25,
        median_distance=1.5,
    )


ROUNDS = tuple(a_round(number) for number in range(2))
ONE = EpisodeRecord(
    "reach", 4, True, 1, ARM, "abc", 4, 2**64 - 1, 9, 2, 0.75, 0.25, 1.5, latency_ms=2.0, kept_rounds=ROUNDS
)
OTHER = EpisodeRecord("reach", 5, True, 1, ARM, "def", 5, 7, 9, 2, kept_rounds=ROUNDS)
FAILED = replace(OTHER, success=False, error="Traceback: the gripper is stuck")


def claimed(folder, *episodes, **identity):
    store = Store(folder)
    store.claim({"policy": "p", **identity})
    if episodes:
        store.add_shard(episodes, 0.25)
    return store


def test_episodes_and_rounds_come_back_as_they_were(tmp_path):
    claimed(tmp_path, ONE, FAILED).close()
    with Store(tmp_path) as store:
        assert store.episodes() == [replace(one, kept_rounds=()) for one in (ONE, FAILED)]
        assert store.keys() == {ONE.key, OTHER.key}
        for kept, given in zip(store.rounds(ONE.key), ROUNDS, strict=True):
            for name, value in vars(given).items():
                np.testing.assert_array_equal(getattr(kept, name), value)


def test_stored_episodes_are_not_replaced(tmp_path):
    """An episode rolled out again beside a missing one may come with other rounds: the stored ones stay."""
    again = replace(ONE, success=False, kept_rounds=tuple(replace(a_round(number), step=99) for number in range(4)))
    with claimed(tmp_path, ONE) as store:
        store.add_shard([again, OTHER], 0.25)
        assert [one.success for one in store.episodes()] == [True, True]
        assert [kept.step for kept in store.rounds(ONE.key)] == [0, 8]


def test_errors_are_deleted_with_their_rounds(tmp_path):
    with claimed(tmp_path, ONE, FAILED) as store:
        assert len(store.rounds(FAILED.key)) == 2
        assert store.delete_errors({ONE.key, (ARM, "reach", 0, 5)}) == 0
        assert store.delete_errors({ONE.key, FAILED.key}) == 1
        assert store.keys() == {ONE.key}
        assert store.rounds(FAILED.key) == []
        assert len(store.rounds(ONE.key)) == 2
        store.add_shard([ONE, OTHER], 0.25)
        assert [one.error for one in store.episodes()] == [None, None]


def test_a_shard_is_one_transaction(tmp_path):
    """If one row of a shard cannot be stored, none is."""
    with claimed(tmp_path) as store:
        with pytest.raises(KeystoneError, match="UNIQUE constraint failed: rounds"):
            store.add_shard([ONE, replace(OTHER, kept_rounds=(ROUNDS[0], ROUNDS[0]))], 0.25)
        assert store.keys() == set()
        assert store.rounds(ONE.key) == []


def test_another_evaluation_is_refused(tmp_path):
    claimed(tmp_path, ONE, seed=0, shard=25).close()
    claimed(tmp_path, seed=0, shard=25).close()
    with pytest.raises(KeystoneError, match=r"holds another evaluation \(seed was 0, now 1; shard was 25, now 5\)"):
        claimed(tmp_path, seed=1, shard=5)


def test_a_run_without_episodes_may_be_claimed_with_other_settings(tmp_path):
    claimed(tmp_path, device="cuda:7").close()
    with claimed(tmp_path, device="cpu") as store:
        assert store.identity() == {"policy": "p", "device": "cpu"}


def test_arms_keep_the_order_in_which_they_were_added(tmp_path):
    with claimed(tmp_path) as store:
        assert store.add_arms(["first", "keystone:k=16"]) == ["first", "keystone:k=16"]
    with Store(tmp_path) as store:
        store.lock()
        assert store.add_arms(["medoid:k=16", "first"]) == ["first", "keystone:k=16", "medoid:k=16"]


def test_a_folder_without_a_run(tmp_path):
    with Store(tmp_path) as store, pytest.raises(KeystoneError, match="expected the folder of a `keystone eval`"):
        store.episodes()
    assert list(tmp_path.iterdir()) == []


def damage(path, how):
    size = path.stat().st_size
    if how == "garbage":
        path.write_bytes(b"this is no database" * 100)
    elif how == "cut off":
        os.truncate(path, size // 2)
    elif how == "overwritten":
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(size - 4096))
    elif how == "another's":
        path.unlink()
        sqlite3.connect(path).executescript("CREATE TABLE meta (key, value); CREATE TABLE shopping (item);")
    elif how == "another definition":
        path.write_bytes(path.read_bytes().replace(b"candidates BLOB", b"'andidates BLOB"))
    elif how == "newer":
        sqlite3.connect(path).execute("PRAGMA user_version = 99")
    elif how == "without a version":
        sqlite3.connect(path).execute("PRAGMA user_version = 0")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("garbage", "is damaged or not a KeyStone database"),
        ("cut off", "is damaged or not a KeyStone database"),
        ("overwritten", "is damaged or not a KeyStone database"),
        ("another's", "is damaged or not a KeyStone database"),
        ("another definition", "is damaged or not a KeyStone database"),
        ("newer", f"its schema is 99, this version reads 2 to {schema.VERSION}"),
        ("without a version", "its schema is None"),
    ],
)
def test_a_damaged_store_is_not_changed(tmp_path, how, says):
    claimed(tmp_path, *(replace(ONE, episode=number) for number in range(20))).close()
    path = tmp_path / FILE
    damage(path, how)
    before = path.read_bytes()
    with pytest.raises(KeystoneError, match=says) as error:
        claimed(tmp_path)
    assert str(path) in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert path.read_bytes() == before
    with pytest.raises(KeystoneError, match=says), Store(tmp_path) as store:
        store.episodes()


def test_an_empty_database_is_not_a_new_run(tmp_path):
    """A disk that was full, a copy that failed: what was stored is lost, and nobody should find that out later."""
    claimed(tmp_path, ONE).close()
    (tmp_path / FILE).write_bytes(b"")
    with pytest.raises(KeystoneError, match=r"is empty: what was stored there is lost\. Restore it, or delete it"):
        claimed(tmp_path)
    assert (tmp_path / FILE).read_bytes() == b""
    with pytest.raises(KeystoneError, match="its tables are missing"), Store(tmp_path) as store:
        store.episodes()


def test_a_process_killed_while_it_created_the_tables(tmp_path):
    """It leaves no database, so that the next one begins."""
    code = f"""
        import os, pathlib, signal
        from keystone_robotics.records import Store, schema
        create = schema.create
        schema.create = lambda database: (create(database), os.kill(os.getpid(), signal.SIGKILL))
        Store(pathlib.Path({str(tmp_path)!r})).claim({{"policy": "p"}})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == -9
    assert not (tmp_path / FILE).exists()
    with claimed(tmp_path, ONE) as store:
        assert store.keys() == {ONE.key}


CHANGES = {
    "an outcome": ("UPDATE episodes SET success = 0", "episodes"),
    "a statistic": ("UPDATE episodes SET consensus = 0.5", "episodes"),
    "a type": ("UPDATE episodes SET checksum = NULL, steps = 'many'", "episodes"),
    "a blob": (
        "UPDATE rounds SET candidates = zeroblob(length(candidates))",
        "rounds",
    ),
    "a blob that is text": ("UPDATE rounds SET candidates = CAST(x'ff00' AS TEXT)", "holds text that is not UTF-8"),
    "a type of a round": ("UPDATE rounds SET checksum = NULL, dispersion = 'much'", "rounds"),
    "labels of another type": ("UPDATE rounds SET checksum = NULL, labels = actions", "rounds"),
    "candidates of one dimension": ("UPDATE rounds SET checksum = NULL, candidates = labels", "rounds"),
    "no candidate chosen": ("UPDATE rounds SET checksum = NULL, chosen = 99", "rounds"),
    "a blob cut off": ("UPDATE rounds SET checksum = NULL, actions = substr(actions, 1, 20)", "rounds"),
    "the identity": ("UPDATE meta SET value = '[[[' WHERE key = 'identity'", "meta"),
}


@pytest.mark.parametrize(("change", "place"), CHANGES.values(), ids=CHANGES)
def test_changed_values_are_noticed(tmp_path, change, place):
    """SQLite checks its pages, not what is on them."""
    claimed(tmp_path, ONE, FAILED).close()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute(change)
    with Store(tmp_path) as store, pytest.raises(KeystoneError, match=f"is damaged: a row of the table {place}"):
        store.identity(), store.episodes(), store.rounds(ONE.key)


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
HOSTILE = {
    "a view": ("ALTER TABLE episodes RENAME TO e", f"CREATE VIEW episodes AS {ENDLESS}"),
    "another view": (f"CREATE VIEW more AS {ENDLESS}",),
    "a trigger": ("CREATE TRIGGER t AFTER INSERT ON episodes BEGIN DELETE FROM shards; END",),
    "a computed column": ("ALTER TABLE meta ADD COLUMN more TEXT GENERATED ALWAYS AS (hex(zeroblob(100))) VIRTUAL",),
    "a virtual table": ("CREATE VIRTUAL TABLE words USING fts5(word)",),
}


@pytest.mark.parametrize("statements", HOSTILE.values(), ids=HOSTILE)
def test_a_database_with_a_program_in_it_is_refused(tmp_path, statements):
    claimed(tmp_path, ONE).close()
    with sqlite3.connect(tmp_path / FILE) as database:
        for statement in statements:
            database.execute(statement)
    for use in (lambda: Store(tmp_path).episodes(), lambda: claimed(tmp_path)):
        with pytest.raises(KeystoneError, match=r"it holds more than tables: the (view|trigger|table)"):
            use()


def test_reading_ends(tmp_path, monkeypatch):
    claimed(tmp_path, ONE).close()
    monkeypatch.setattr(store_module, "READING_SECONDS", 0.1)
    with Store(tmp_path) as store, pytest.raises(KeystoneError, match="was not read within 0 s"):
        store._select(ENDLESS)


def test_the_limit_is_for_a_query_and_not_for_the_time_between_queries(tmp_path, monkeypatch):
    claimed(tmp_path, ONE).close()
    monkeypatch.setattr(store_module, "READING_SECONDS", 0.2)
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)"
    with Store(tmp_path) as store:
        store.episodes()
        time.sleep(0.3)
        assert store._select(f"{numbers} SELECT count(*) AS all_of FROM n") == [{"all_of": 60000}]


def test_a_store_that_is_not_claimed_does_not_write(tmp_path):
    claimed(tmp_path, ONE).close()
    with Store(tmp_path) as store, pytest.raises(KeystoneError, match="readonly"):
        store.add_arms(["first"])


def test_two_processes_in_one_folder(tmp_path):
    code = f"""
        import sys, pathlib
        from keystone_robotics.records import Store
        store = Store(pathlib.Path({str(tmp_path)!r}))
        store.claim({{"policy": "p"}})
        print("claimed", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(KeystoneError, match="another evaluation is running"):
            claimed(tmp_path)
        other.kill()  # which releases its lock
        other.wait()
        claimed(tmp_path, ONE).close()


class Msvcrt:
    """As on Windows, where there is no fcntl."""

    LK_NBLCK = 2
    held = False

    @classmethod
    def locking(cls, descriptor, mode, size):
        assert (mode, size) == (cls.LK_NBLCK, 1)
        if cls.held:
            raise OSError(errno.EACCES, "Permission denied")
        cls.held = True


def test_a_system_without_fcntl(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", Msvcrt)
    with claimed(tmp_path):
        assert Msvcrt.held
        with pytest.raises(KeystoneError, match="another evaluation is running"):
            claimed(tmp_path)


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
    def refuse(file):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    uris = []

    def connect(path, *args, **options):
        uris.append(str(path))
        return original(path, *args, **options)

    original = sqlite3.connect
    monkeypatch.setattr("keystone_robotics.records.lock._lock", refuse)
    monkeypatch.setattr(sqlite3, "connect", connect)
    claimed(tmp_path / "a run", ONE).close()
    assert "does not support locks (No locks available)" in caplog.text
    assert uris
    assert all(uri.endswith("?nolock=1") for uri in uris)
    monkeypatch.undo()
    with Store(tmp_path / "a run") as store:
        assert store.keys() == {ONE.key}


def test_a_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KeystoneError, match=r"cannot write to .*file/run: Not a directory"):
        claimed(tmp_path / "file" / "run")


@pytest.fixture
def read_only():
    """The folder of a run that is not writable; root, for whom everything is, becomes nobody."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        claimed(folder, ONE).close()
        for path, mode in ((Path(parent), 0o755), (folder / FILE, 0o444), (folder / "lock", 0o444), (folder, 0o555)):
            path.chmod(mode)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        yield folder
        os.seteuid(user)
        folder.chmod(0o755)


def test_a_read_only_run_can_be_read(read_only):
    with pytest.raises(KeystoneError, match=r"cannot write to .*: Permission denied"):
        claimed(read_only)
    with Store(read_only) as store:
        assert store.keys() == {ONE.key}
