"""``kill -9`` at random moments of `keystone eval`: the command itself, or one of its workers. The same command goes on, and
ends with the table of a run that nobody disturbed.

The long version: ``PYTHONPATH=src:study/src:tests python tests/evaluate/kill9.py --kills 100``
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import psutil

from keystone_robotics.cli import main as keystone_command
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.records import FILE
from toy import save_random_flow, table, toy_settings

KEYSTONE = Path(sys.executable).with_name("keystone")
#: Of the long version, for each of two arms.
EPISODES = 60
#: Who rolls out, and the share of all kills.
MODES = {
    "in this process": (["--workers", "0"], 0.1),
    "one process": ([], 0.4),
    "two processes": (["--workers", "2"], 0.4),
    "Ray": (["--ray", "local", "--workers", "1"], 0.1),
}


@dataclass
class Kills:
    """How often the command and its workers were killed, and how many runs came to their end meanwhile."""

    commands: int = 0
    workers: int = 0
    runs: int = 0

    @property
    def total(self):
        return self.commands + self.workers


def stored_shards(folder):
    """Shards stored so far; what is there must be whole after any kill."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True)) as database:
            return database.execute("SELECT COUNT(*) FROM shards").fetchone()[0]
    except sqlite3.OperationalError:  # not there yet
        return 0


def check_whole(folder):
    """The database is sound, and holds whole shards only."""
    if stored_shards(folder):
        with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            episodes = database.execute("SELECT COUNT(*) FROM episodes").fetchone()[0]
            assert episodes == database.execute("SELECT SUM(count) FROM shards").fetchone()[0]


def workers_of(command):
    """The worker processes of a command: on Linux forks of a server that is its child."""
    return [one for one in command.children(recursive=True) if one.ppid() != command.pid and "forkserver" in _line(one)]


def _line(process):
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


class Forked:
    """The command in a fork of this process, which has imported everything: starts faster. Has what is used of Popen."""

    def __init__(self, command):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the object)
        self.pid, self.returncode = os.fork(), None
        if self.pid == 0:
            self._run(command)

    def _run(self, command):
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(self._errors.fileno(), 2)
            del sys.modules["__main__"].__file__  # workers would import this script
            code = keystone_command(command[1:])
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    @property
    def stderr(self):
        self._errors.seek(0)
        return self._errors

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, seconds):
        until = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.01)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait(600)


def start(command):
    """The command as a user starts it."""
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def disturb(command, folder, moments, kills, *, kill_workers=True, most, start=start):
    """Start a command once, and kill it at a random moment, or its worker and let it go on; returns its exit code."""
    with start(list(map(str, command))) as process:
        if moments.random() < 0.25:  # anywhere, before the first shard too
            moment, progress = moments.uniform(0, 6), 0
        else:
            moment, progress = moments.uniform(0, 0.6), stored_shards(folder) + 1
        while True:
            until = time.monotonic() + 240
            while process.poll() is None and stored_shards(folder) < progress and time.monotonic() < until:
                time.sleep(0.01)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            if process.poll() is not None:
                kills.runs += process.returncode == 0
                assert process.returncode == 0, process.stderr.read()
                return 0
            me = psutil.Process(process.pid)
            victims = workers_of(me) if kill_workers and kills.total < most and moments.random() < 0.75 else []
            if not victims:
                break
            with contextlib.suppress(psutil.NoSuchProcess):
                moments.choice(victims).kill()
                kills.workers += 1
            # The next one only after two shards: three deaths of one shard's workers would be that shard's fault.
            moment, progress = moments.uniform(0, 0.6), stored_shards(folder) + 2
        family = me.children(recursive=True)
        process.kill()
        kills.commands += 1
    _, alive = psutil.wait_procs(family, timeout=120)  # one that still imports notices afterwards
    assert not alive, f"workers outlive the command: {[_line(one) for one in alive]}"
    check_whole(folder)
    return process.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=900.0, help="end then, also with fewer kills")
    given = parser.parse_args()
    moments = random.Random(given.seed)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        policy = save_random_flow(home / "policy")
        settings = toy_settings(policy, home, "slow", episodes=EPISODES, shard=2)
        evaluate(settings, home / "undisturbed")
        expected = table(home / "undisturbed")
        flags = ["--policy", policy, "--env", settings.env, "--tasks", "slow", "--episodes", EPISODES, "--shard", "2",
                 "--arm", "first", "--arm", "keystone:k=4"]  # fmt: skip
        results, begin = {}, time.monotonic()
        for number, (mode, (how, share)) in enumerate(MODES.items()):
            kills, most = Kills(), round(share * given.kills)
            until = begin + given.seconds * sum(share for _, share in list(MODES.values())[: number + 1])
            while kills.total < most and time.monotonic() < until:
                folder = home / f"run{number}-{kills.runs}"
                command = [KEYSTONE, "eval", *flags, *how, "--out", folder]
                if disturb(command, folder, moments, kills, kill_workers=mode != "Ray", most=most, start=Forked) == 0:
                    assert table(folder) == expected, f"{mode}: another table after {kills}"
            if stored_shards(folder) < EPISODES:  # the last one is not finished: shards of two, two arms
                subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=600)
                assert table(folder) == expected, f"{mode}: another table after {kills}"
                kills.runs += 1
            results[mode] = vars(kills)
            print(f"{mode}: {kills}, the same table every time", flush=True)
    print(json.dumps({"kills": results, "seconds": round(time.monotonic() - begin)}, indent=2))


if __name__ == "__main__":
    main()
