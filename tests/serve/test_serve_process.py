"""The command in a process of its own: killed, started again on its port, and ended by SIGTERM while robots are served."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import websockets
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from keystone_robotics.cli import main

OBSERVATION = {"environment_state": np.zeros(89, np.float32), "keystone_episode": "arm 1"}


@contextlib.contextmanager
def command(port, **variables):
    process = subprocess.Popen(
        [sys.executable, "-m", "keystone_robotics", "serve", "metaworld-easy-clean", "--spec", "core-mean:k=4,seed=1",
         "--max-batch", "2", "--protocol", f"openpi:{port}", "--log", "json"],
        env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
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
        process.kill()
        process.communicate()


def test_killed_restarted_and_drained(tmp_path):
    columns = pytest.importorskip("view.recordings").columns
    with command(0) as (process, port):
        client = WebsocketClientPolicy("127.0.0.1", port)
        before = client.infer(OBSERVATION)["actions"]
        process.kill()
        with pytest.raises((websockets.ConnectionClosed, OSError)):
            client.infer(OBSERVATION)
    with command(port, KEYSTONE_RERUN=str(tmp_path / "rounds.rrd")) as (process, again):
        assert again == port
        client = WebsocketClientPolicy("127.0.0.1", port)
        np.testing.assert_array_equal(
            client.infer(OBSERVATION)["actions"], before
        )  # the seed of the Spec, the same episode
        answered, ended = [], []

        def act():
            try:
                while True:
                    answered.append(client.infer(OBSERVATION))
            except (websockets.ConnectionClosed, RuntimeError) as error:
                ended.append(error)

        acting = threading.Thread(target=act)
        acting.start()
        while len(answered) < 3:
            pass
        process.send_signal(signal.SIGTERM)
        acting.join(60)
        output, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
        assert output.endswith("keystone serve: drained\n")
        assert "shutting down" in str(ended[0]) or isinstance(ended[0], websockets.ConnectionClosedOK)
        lines = [json.loads(line) for line in log.splitlines()]
        assert any("self-check passed" in line["message"] for line in lines)
        assert any(line["message"].startswith("draining") for line in lines)
    numbers = columns(tmp_path / "rounds.rrd", "keystone")["round"]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= len(answered)


def test_a_dry_run_warms_up_and_opens_no_port(monkeypatch, capsys):
    monkeypatch.setattr("keystone_robotics.serve.launch.log_to_stderr", lambda style: None)
    monkeypatch.setattr("keystone_robotics.serve.launch.serve", None)
    assert (
        main(["serve", "echoing:agent", "--k", "2", "--max-batch", "1", "--protocol", "openpi:0,groot:0", "--dry-run"])
        == 0
    )
    said = capsys.readouterr().out
    assert "warmed up in" in said
    assert said.endswith("dry run: would serve openpi on 127.0.0.1:0, groot on 127.0.0.1:0\n")
