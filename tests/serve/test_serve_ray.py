"""Two replicas on Ray Serve, behind the real command: one is killed under load."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from serving import STATE, state

HERE = Path(__file__).parent


@contextlib.contextmanager
def command(*options):
    process = subprocess.Popen(
        [sys.executable, "-m", "keystone_robotics", "serve", "echoing:agent", "--spec", "coherent:k=2", "--max-batch", "2",
         "--replicas", "2", "--protocol", "openpi:0", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"},
    )  # fmt: skip
    try:
        for line in process.stdout:
            found = re.search(r"serving openpi on 127\.0\.0\.1:(\d+)", line)
            if found:
                break
        else:
            raise AssertionError(process.stderr.read())
        yield process, int(found[1])
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def replicas_of(process):
    children = psutil.Process(process.pid).children(recursive=True)
    return [one for one in children if "ServeReplica" in " ".join(one.cmdline())]


def test_a_replica_is_killed_under_load():
    with command() as (process, port):
        served = replicas_of(process)
        assert len(served) == 2
        replies, problems, ending = {number: [] for number in range(4)}, [], threading.Event()

        def act(number):
            client = WebsocketClientPolicy("127.0.0.1", port)
            try:
                while not ending.is_set():
                    number_sent = 10.0 * number + len(replies[number]) % 10
                    chunk = client.infer({STATE: state(number_sent), "keystone_episode": f"arm {number}"})["actions"]
                    replies[number].append((number_sent, chunk))
            except Exception as error:
                problems.append(error)

        robots = [threading.Thread(target=act, args=(number,)) for number in replies]
        for robot in robots:
            robot.start()
        wait_until(lambda: all(len(one) > 10 for one in replies.values()))
        served[0].kill()
        after = {number: len(one) for number, one in replies.items()}
        wait_until(lambda: all(len(one) > after[number] + 30 for number, one in replies.items()))
        ending.set()
        for robot in robots:
            robot.join(30)
        assert problems == []
        for sent, chunk in [pair for one in replies.values() for pair in one]:
            np.testing.assert_array_equal(chunk[:, 0], sent)
        os.kill(process.pid, signal.SIGTERM)
        output, log = process.communicate(timeout=60)
        assert (process.returncode, output.splitlines()[-1]) == (0, "keystone serve: drained"), log
    assert not any(one.is_running() for one in served)


def wait_until(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)
