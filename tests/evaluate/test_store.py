"""The store: what is in it stays in it, and what is wrong with it is said."""

import datetime
import errno
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate import executors
from keystone_robotics.evaluate.config import Shard
from keystone_robotics.evaluate.results import EpisodeResult, RoundRecord, ShardResult
from keystone_robotics.evaluate.run import evaluate, versions
from keystone_robotics.evaluate.store import FILE, Store
from keystone_robotics.spec import Spec
from toy import numbers, table

SHARD = Shard(Spec.parse("keystone:k=4"), "reach", 1, 4, 2)


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
    )


def a_result(error=None, success=True):
    kept = tuple(a_round(number) for number in range(2))
    one = EpisodeResult(4, "abc", 4, 2**64 - 1, success, 9, 2, 0.75, 1.5, None, kept)
    other = EpisodeResult(5, "def", 5, 7, success and error is None, 9, 2, None, None, error, kept if error else ())
    return ShardResult(SHARD, (one, other), 0.25)


def claimed(folder, **identity):
    store = Store(folder)
    store.claim({"policy": "p", **identity})
    return store


def test_episodes_and_rounds_come_back_as_they_were(tmp_path):
    with claimed(tmp_path) as store:
        store.add(a_result("Traceback: the gripper is stuck"))
    with Store(tmp_path) as store:
        one, other = store.episodes()
        assert (one.arm, one.task, one.repeat, one.episode) == ("keystone:k=4", "reach", 1, 4)
        assert (one.success, one.noise_seed, one.consensus, one.latency_ms, one.error) == (
            True,
            2**64 - 1,
            0.75,
            1.5,
            None,
        )
        assert (other.success, other.error, other.latency_ms) == (False, "Traceback: the gripper is stuck", None)
        for number, kept in enumerate(store.rounds("keystone:k=4", "reach", 1, 4)):
            for name, value in vars(a_round(number)).items():
                np.testing.assert_array_equal(getattr(kept, name), value)
        assert not store.missing([SHARD])
        assert store.missing([SHARD, replace(SHARD, first=6), replace(SHARD, count=3)]) == [
            replace(SHARD, first=6),
            replace(SHARD, count=3),
        ]


def test_what_is_stored_stays(tmp_path):
    with claimed(tmp_path) as store:
        store.add(a_result())
        store.add(a_result(success=False))
        assert [row.success for row in store.episodes()] == [True, True]


def test_forgotten_errors_take_their_rounds_with_them(tmp_path):
    with claimed(tmp_path) as store:
        store.add(a_result("it broke"))
        assert len(store.rounds("keystone:k=4", "reach", 1, 5)) == 2
        assert store.forget_errors([replace(SHARD, repeat=0), replace(SHARD, first=0, count=4)]) == 0
        assert len(store.episodes()) == 2, "errors of what was not asked for are kept"
        assert store.forget_errors([SHARD]) == 1
        assert [row.episode for row in store.episodes()] == [4]
        assert store.rounds("keystone:k=4", "reach", 1, 5) == []
        assert len(store.rounds("keystone:k=4", "reach", 1, 4)) == 2
        store.add(a_result())
        assert [row.error for row in store.episodes()] == [None, None]


def test_another_evaluation_is_refused(tmp_path):
    with claimed(tmp_path, seed=0, shard=25) as store:
        store.add(a_result())
    claimed(tmp_path, seed=0, shard=25).close()
    with pytest.raises(KeystoneError, match=r"holds another evaluation \(seed was 0, now 1; shard was 25, now 5\)"):
        claimed(tmp_path, seed=1, shard=5)


def test_an_evaluation_that_never_got_anywhere_may_become_another(tmp_path):
    claimed(tmp_path, device="cuda:7").close()
    with claimed(tmp_path, device="cpu") as store:
        assert store.identity() == {"policy": "p", "device": "cpu"}


def test_rounds_are_those_of_the_stored_episode(tmp_path):
    """An episode that is rolled out again beside one that was missing brings other rounds, or more of them."""
    again = replace(a_result().episodes[0], kept=tuple(replace(a_round(number), step=99) for number in range(4)))
    with claimed(tmp_path) as store:
        store.add(a_result())
        store.add(ShardResult(SHARD, (again,), 0.25))
        assert [kept.step for kept in store.rounds("keystone:k=4", "reach", 1, 4)] == [0, 8]


def test_versions_of_every_session_stay(toy, tmp_path, monkeypatch, caplog):
    run = tmp_path / "run"
    evaluate(toy(episodes=4), run)
    evaluate(toy(episodes=8), run)
    evaluate(toy(episodes=8), run)  # there is nothing to do
    assert "other versions" not in caplog.text
    monkeypatch.setattr("keystone_robotics.evaluate.run.versions", lambda: {**versions(), "torch": "99.0"})
    evaluate(toy(episodes=12), run)
    assert f"torch was {versions()['torch']}, now 99.0" in caplog.text
    with Store(run) as store:
        assert [used["torch"] for _, used in store.sessions()] == [versions()["torch"]] * 2 + ["99.0"]
        begun = [datetime.datetime.fromisoformat(date) for date, _ in store.sessions()]
    assert begun == sorted(begun)


@pytest.mark.parametrize(
    "changed", [{"device": "cpu"}, {"seed": 1}, {"shard": 2}, {"max_steps": 3}, {"execute": 2}, {"keep_rounds": True}]
)
def test_settings_that_decide_the_outcome_must_not_change(toy, tmp_path, changed):
    evaluate(toy(), tmp_path / "run")
    before = table(tmp_path / "run")
    with pytest.raises(KeystoneError, match=f"{next(iter(changed))} was"):
        evaluate(toy(**changed), tmp_path / "run")
    assert table(tmp_path / "run") == before


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
    elif how == "newer":
        database = sqlite3.connect(path)
        database.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
        database.commit()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("garbage", "is damaged or no store"),
        ("cut off", "is damaged or no store"),
        ("overwritten", "is damaged or no store"),
        ("another's", "is damaged or no store"),
        ("newer", "another version of KeyStone"),
    ],
)
def test_a_damaged_store_is_left_as_it_is(toy, tmp_path, how, says):
    evaluate(toy(keep_rounds=True), tmp_path / "run")
    path = tmp_path / "run" / FILE
    damage(path, how)
    before = path.read_bytes()
    with pytest.raises(KeystoneError, match=says) as error:
        evaluate(toy(keep_rounds=True), tmp_path / "run")
    assert str(path) in str(error.value)
    assert path.read_bytes() == before
    with pytest.raises(KeystoneError, match=says), Store(tmp_path / "run") as store:
        store.episodes()


@pytest.mark.parametrize("left", [b"", None])
def test_a_process_killed_while_it_made_the_tables(toy, tmp_path, left):
    """What it leaves is an empty file, or one of which SQLite's journal knows that it was empty."""
    folder = tmp_path / "run"
    folder.mkdir()
    if left is not None:
        (folder / FILE).write_bytes(left)
    else:
        code = f"""
            import os, signal, sqlite3
            database = sqlite3.connect({str(folder / FILE)!r}, isolation_level=None)
            database.execute("PRAGMA cache_size = 1")
            database.execute("BEGIN")
            database.execute("CREATE TABLE meta (key TEXT, value TEXT)")
            for n in range(200):
                database.execute("INSERT INTO meta VALUES (?, ?)", (str(n), "x" * 2000))
            os.kill(os.getpid(), signal.SIGKILL)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
        assert (folder / FILE).stat().st_size > 0
        assert (folder / f"{FILE}-journal").exists()
    report = evaluate(toy(), folder)
    assert report.new == 16


def test_two_evaluations_in_one_folder(toy, tmp_path):
    code = f"""
        import sys, pathlib
        from keystone_robotics.evaluate.store import Store
        store = Store(pathlib.Path({str(tmp_path / "run")!r}))
        store.claim({{"policy": "p"}})
        print("claimed", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(KeystoneError, match="another evaluation is running"):
            evaluate(toy(), tmp_path / "run")
        other.kill()  # its lock goes with it
        other.wait()
        assert evaluate(toy(), tmp_path / "run").new == 16


def test_nothing_is_loaded_while_another_evaluation_works_there(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("keystone_robotics.evaluate.worker.load_agent", None)
    with claimed(tmp_path / "run"), pytest.raises(KeystoneError, match="another evaluation is running"):
        evaluate(toy(), tmp_path / "run")


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


def test_a_file_system_that_cannot_lock(toy, tmp_path, monkeypatch, caplog):
    def refuse(file):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    uris = []

    def connect(path, *args, **options):
        uris.append(str(path))
        return original(path, *args, **options)

    original = sqlite3.connect
    monkeypatch.setattr("keystone_robotics.evaluate.lock._lock", refuse)
    monkeypatch.setattr(sqlite3, "connect", connect)
    assert evaluate(toy(), tmp_path / "a run").new == 16
    assert "cannot lock (No locks available)" in caplog.text
    assert uris
    assert all(uri.endswith("?nolock=1") for uri in uris)
    monkeypatch.undo()
    assert len(table(tmp_path / "a run")) == 16


def test_a_folder_that_cannot_be_made(toy, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KeystoneError, match=r"cannot work in .*file/run: Not a directory"):
        evaluate(toy(), tmp_path / "file" / "run")


@pytest.fixture
def readable(toy):
    """The folder of a run in which nobody may write; root, who may, becomes nobody."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        evaluate(toy(), folder)
        for path, mode in ((Path(parent), 0o755), (folder / FILE, 0o444), (folder / "lock", 0o444), (folder, 0o555)):
            path.chmod(mode)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        yield folder
        os.seteuid(user)
        folder.chmod(0o755)


def test_a_folder_that_may_only_be_read(readable):
    with pytest.raises(KeystoneError, match=r"cannot work in .*: Permission denied"):
        claimed(readable)
    with Store(readable) as store:
        assert len(store.episodes()) == 16


@pytest.mark.parametrize("room", [1, 6_000, 20_000, 40_000, 70_000])
def test_a_full_disk(toy, tmp_path, room):
    """Files may not grow beyond a size: an error that says so, nothing lost, and the same call ends with the same table."""
    settings = toy(keep_rounds=True, episodes=16)
    expected = evaluate(settings, tmp_path / "expected")
    stored = []

    def counting(*args):
        for result in executors.in_process(*args):
            yield result
            stored.append(result)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(KeystoneError, match="cannot write"):
            evaluate(settings, tmp_path / "run", counting)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if stored:
        assert len(table(tmp_path / "run")) == sum(len(result.episodes) for result in stored)
    report = evaluate(settings, tmp_path / "run")
    assert report.new == 32 - sum(len(result.episodes) for result in stored)
    assert table(tmp_path / "run") == table(tmp_path / "expected")
    assert numbers(report.summaries) == numbers(expected.summaries)


def test_errors_are_tried_again_only_if_asked_for(toy, tmp_path, monkeypatch):
    settings = toy("step-fails", keep_rounds=True, episodes=6)
    report = evaluate(settings, tmp_path / "run")
    assert [summary.errors for summary in report.summaries] == [2, 2]
    assert evaluate(settings, tmp_path / "run").new == 0
    monkeypatch.setattr("toy.WRONG", None)  # mended
    assert evaluate(settings, tmp_path / "run").new == 0
    fewer = toy("step-fails", arms=["first"], keep_rounds=True, episodes=6)
    assert evaluate(fewer, tmp_path / "run", retry_errors=True).new == 2
    assert sum(row.error is not None for row in table(tmp_path / "run")) == 2, "the other arm's are still there"
    report = evaluate(settings, tmp_path / "run", retry_errors=True)
    assert (report.new, [summary.errors for summary in report.summaries]) == (2, [0, 0])
    evaluate(settings, tmp_path / "expected")
    assert table(tmp_path / "run") == table(tmp_path / "expected")
    for row in table(tmp_path / "run"):
        with Store(tmp_path / "run") as store:
            assert len(store.rounds(row.arm, row.task, row.repeat, row.episode)) == row.rounds


def test_arms_are_remembered_in_the_order_in_which_they_were_first_asked_for(tmp_path):
    with Store(tmp_path) as store:
        store.claim({"env": "toy"})
        assert store.add_arms(["first", "keystone:k=16"]) == ["first", "keystone:k=16"]
    with Store(tmp_path) as store:
        assert store.add_arms(["medoid:k=16"]) == ["first", "keystone:k=16", "medoid:k=16"]
        assert store.add_arms(["keystone:k=16", "first"]) == ["first", "keystone:k=16", "medoid:k=16"]
