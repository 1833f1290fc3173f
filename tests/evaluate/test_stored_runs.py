"""Runs on disk: what resuming may change, full disks, versions of packages, errors that are retried."""

import datetime
import resource

import pytest

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.executors.in_process import InProcess
from keystone_robotics.evaluate.run import evaluate, versions
from keystone_robotics.records import Store
from toy import summaries, table


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


def test_settings_that_decide_the_outcome_must_not_change(toy, tmp_path):
    evaluate(toy(), tmp_path / "run")
    before = table(tmp_path / "run")
    others = {"device": "cpu", "seed": 1, "shard": 2, "max_steps": 3, "execute": 2, "keep_rounds": True}
    for name, value in others.items():
        with pytest.raises(KeystoneError, match=f"{name} was"):
            evaluate(toy(**{name: value}), tmp_path / "run")
    assert table(tmp_path / "run") == before
    assert evaluate(toy(latency=False), tmp_path / "run").new == 0


def test_nothing_is_loaded_while_another_evaluation_works_there(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("keystone_robotics.evaluate.worker.load_agent", None)
    with Store(tmp_path / "run") as store:
        store.lock()
        with pytest.raises(KeystoneError, match="another evaluation is running"):
            evaluate(toy(), tmp_path / "run")


@pytest.mark.parametrize("room", [1, 20_000, 70_000])
def test_a_full_disk(toy, tmp_path, room):
    """Files may not grow beyond a size: an error that says so, nothing lost, and the same call ends with the same table."""
    settings = toy(keep_rounds=True, episodes=16)
    expected = evaluate(settings, tmp_path / "expected")
    stored = []

    class Counting(InProcess):
        def __call__(self, settings, shards):
            for result in super().__call__(settings, shards):
                yield result
                stored.append(result)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(KeystoneError, match="cannot write"):
            evaluate(settings, tmp_path / "run", Counting())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if stored:
        assert len(table(tmp_path / "run")) == sum(len(result.episodes) for result in stored)
    report = evaluate(settings, tmp_path / "run")
    assert report.new == 32 - sum(len(result.episodes) for result in stored)
    assert table(tmp_path / "run") == table(tmp_path / "expected")
    assert summaries(report) == summaries(expected)


def test_errors_are_tried_again_only_if_asked_for(toy, tmp_path, monkeypatch):
    settings = toy("step-fails", keep_rounds=True, episodes=6)
    report = evaluate(settings, tmp_path / "run")
    assert [summary.errors for summary in summaries(report)] == [2, 2]
    assert evaluate(settings, tmp_path / "run").new == 0
    monkeypatch.setattr("toy.WRONG", None)  # mended
    assert evaluate(settings, tmp_path / "run").new == 0
    fewer = toy("step-fails", arms=["first"], keep_rounds=True, episodes=6)
    assert evaluate(fewer, tmp_path / "run", retry_errors=True).new == 2
    assert sum(row.error is not None for row in table(tmp_path / "run")) == 2, "the other arm's are still there"
    report = evaluate(settings, tmp_path / "run", retry_errors=True)
    assert (report.new, [summary.errors for summary in summaries(report)]) == (2, [0, 0])
    evaluate(settings, tmp_path / "expected")
    assert table(tmp_path / "run") == table(tmp_path / "expected")
    for row in table(tmp_path / "run"):
        with Store(tmp_path / "run") as store:
            assert len(store.rounds(row.key)) == row.rounds
