"""This process, worker processes: the same rows, and workers may die."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.executors.in_process import InProcess
from keystone_robotics.evaluate.executors.processes import LocalProcesses
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.records import Store
from toy import summaries, table


def workers():
    """The worker processes: on Linux forks of a server, which stays."""
    servers = [child for child in psutil.Process().children() if "forkserver" in " ".join(child.cmdline())]
    return [worker for server in servers for worker in server.children()]


def test_two_processes_give_the_same_rows(toy, tmp_path):
    settings = toy(arms=["first", "keystone:k=8", "coherent:k=8"], episodes=4, shard=2, repeats=2)
    one = evaluate(settings, tmp_path / "one", InProcess())
    two = evaluate(settings, tmp_path / "two", LocalProcesses(2))
    assert table(tmp_path / "one") == table(tmp_path / "two")
    assert summaries(one) == summaries(two)
    assert (one.new, two.new) == (24, 24)
    assert not workers()
    weights = []
    for name in ("one", "two"):
        with Store(tmp_path / name) as store:
            weights.append(store.noted("weights"))
    assert weights[0]
    assert weights[0] == weights[1]  # an alarm that is calibrated on the run is for these weights


def test_within_a_block_the_processes_outlive_a_call(toy):
    """And one that dies between two calls is replaced."""
    settings = toy(arms=["first"], shard=1, episodes=1)
    with LocalProcesses(1) as executor:
        assert len(list(executor(settings, settings.shards()))) == 1
        (first,) = workers()
        assert len(list(executor(settings, settings.shards()))) == 1
        assert workers() == [first]
        first.kill()
        first.wait()
        assert len(list(executor(settings, settings.shards()))) == 1
        assert workers() not in ([], [first])
    assert not workers()


def test_a_worker_that_dies_once_changes_nothing(toy, tmp_path, caplog):
    """Nor does it for the shard beside it, which is tried again too."""
    settings = toy("dies-once", arms=["first"], shard=2, episodes=4)
    report = evaluate(settings, tmp_path / "run", LocalProcesses(2))
    assert (tmp_path / "died").exists()
    assert "its worker process died of SIGKILL" in caplog.text
    assert (report.new, summaries(report)[0].errors) == (4, 0)
    evaluate(settings, tmp_path / "expected")  # the marker is there: nothing dies
    assert table(tmp_path / "run") == table(tmp_path / "expected")


def test_a_shard_that_always_kills_its_worker_is_counted(toy, tmp_path):
    settings = toy("dies-always", arms=["first"], shard=1, episodes=2)
    order = settings.shards()[::-1]
    results = list(LocalProcesses(1)(settings, order))
    assert len(results) == 2
    wrong = next(result for result in results if result.shard.first == 1).episodes[0]
    assert (wrong.error, wrong.success) == ("its worker process died of SIGKILL (3 died with this episode)", False)
    assert (wrong.initial_seed, wrong.noise_seed) == (1, settings.noise_seed(0, "dies-always", 1, 0))
    fine = next(result for result in results if result.shard.first == 0).episodes[0]
    assert fine.error is None
    assert fine.steps > 0
    assert not workers()


def test_workers_that_are_interrupted_or_die_between_shards(toy):
    settings = toy("slow", arms=["first"], shard=1, episodes=4)
    results = LocalProcesses(1)(settings, settings.shards())
    numbers = [next(results).shard.first]
    for process in workers():  # Ctrl-C reaches everyone in the terminal; the parent alone decides what happens
        process.send_signal(signal.SIGINT)
    numbers.append(next(results).shard.first)
    for process in workers():
        process.kill()
    time.sleep(0.5)  # until the pool has noticed: the next shard must not be lost with it
    numbers.append(next(results).shard.first)
    assert numbers == [0, 1, 2]
    assert workers()
    results.close()
    assert not workers()


def test_workers_that_die_at_start_are_no_shards_affair(toy, toy_policy, tmp_path):
    policy = f"toy:dies_at_start?folder={toy_policy}&parent={os.getpid()}"
    with pytest.raises(KeystoneError, match="died while starting; nothing was rolled out"):
        evaluate(toy(policy=policy, arms=["first"]), tmp_path / "run", LocalProcesses(1))
    assert not (tmp_path / "run").exists()
    assert not workers()


SCRIPT = """
from pathlib import Path
from keystone_robotics.evaluate.executors.processes import LocalProcesses
from keystone_robotics.evaluate.run import evaluate
from toy import toy_settings
evaluate(toy_settings({policy!r}, {folder!r}, arms=["first"]), Path({folder!r}) / "run", LocalProcesses(1))
"""


@pytest.fixture
def run_script(toy_policy, tmp_path):
    """Runs a script, which knows the policy and the folder."""

    def run(code):
        script = tmp_path / "script.py"
        script.write_text(code.format(policy=str(toy_policy), folder=str(tmp_path)))
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        return subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip

    return run


def test_a_script_without_a_guard(run_script, tmp_path):
    result = run_script(SCRIPT)
    assert result.returncode == 1
    assert 'below `if __name__ == "__main__":`, because every worker imports the script' in result.stderr
    assert not (tmp_path / "run").exists()


INTERRUPTED = """
import os, signal
from pathlib import Path
from keystone_robotics.evaluate.executors.processes import LocalProcesses
from keystone_robotics.evaluate.run import evaluate
from toy import toy_settings
if __name__ == "__main__":
    evaluate(toy_settings({policy!r}, {folder!r}, arms=["first"]), Path({folder!r}) / "run", LocalProcesses(1))
else:
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interrupt_does_not_reach_workers_that_still_import(run_script, tmp_path):
    """Ctrl-C reaches everyone in the terminal, at any moment; the parent alone decides what happens."""
    result = run_script(INTERRUPTED)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(table(tmp_path / "run")) == 8


def test_a_set_up_that_is_wrong_is_said_by_the_worker(toy, tmp_path):
    with pytest.raises(KeystoneError, match="takes observations of 3 numbers"):
        evaluate(toy("wide", arms=["first"]), tmp_path / "run", LocalProcesses(1))
    assert table(tmp_path / "run") == []
    assert not workers()
