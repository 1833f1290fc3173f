"""`keystone-policy-server` over a real socket, spoken to as LeRobot's robot client does."""

import json
import pickle
import socket
import sys
import time
from contextlib import contextmanager

import eval_process
import grpc
import numpy as np
import pytest
from lerobot.async_inference.helpers import RemotePolicyConfig, TimedObservation
from lerobot.transport import services_pb2, services_pb2_grpc
from lerobot.transport.utils import send_bytes_in_chunks
from lerobot.utils.feature_utils import hw_to_dataset_features

from lerobot_policy_keystone import flag, policy_server
from tiny import build
from tiny.checkpoint import save_checkpoint
from tiny.common import features

pytestmark = pytest.mark.xdist_group("lerobot-commands")

STEPS = 7
"""The client executes more than the policy's own 5 of 10."""

AGREED = 3
"""Least steps of an adaptive horizon, for candidates that never agree."""


@pytest.fixture
def port():
    """One that nobody else is given until the server, which may share it, has it."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@contextmanager
def running(directory, variables, *arguments):
    """The server as a process; ended by SIGTERM."""
    server = eval_process.start("keystone-policy-server", list(arguments), directory, variables)
    try:
        yield server
    finally:
        server.terminate()
        server.join(120)
        server.kill()


class Client:
    """What LeRobot's robot client calls, for a robot with two joints and a camera."""

    def __init__(self, port: int) -> None:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        grpc.channel_ready_future(channel).result(timeout=180)
        self.server = services_pb2_grpc.AsyncInferenceStub(channel)
        self.server.Ready(services_pb2.Empty())

    def load(self, policy: str, path: str, steps: int) -> None:
        names = hw_to_dataset_features({"x": float, "y": float, "image": (96, 96, 3)}, "observation", use_video=False)
        specs = RemotePolicyConfig(policy, path, names, steps, "cpu")
        self.server.SendPolicyInstructions(services_pb2.PolicySetup(data=pickle.dumps(specs)))

    def act(self, timestep: int) -> list:
        random = np.random.default_rng(timestep)
        raw = {"x": 100.0, "y": 200.0, "image": random.integers(0, 255, (96, 96, 3), dtype=np.uint8), "task": "push"}
        observation = TimedObservation(timestamp=time.time(), timestep=timestep, observation=raw, must_go=True)
        self.server.SendObservations(
            send_bytes_in_chunks(pickle.dumps(observation), services_pb2.Observation, silent=True)
        )
        return pickle.loads(self.server.GetActions(services_pb2.Empty()).data)


def test_actions_over_a_socket(tmp_path, variables, port, checkpoint):
    path = tmp_path / "checkpoint"
    save_checkpoint(build("smolvla", **features(2, 2)), path)
    log = tmp_path / "rounds.jsonl"
    with running(
        tmp_path, {**variables, "KEYSTONE_LOG": str(log), "KEYSTONE_K": "4"},
        "--host=127.0.0.1", f"--port={port}", "--keystone.k=8", "--keystone.rule=medoid", f"--keystone.execute={AGREED}..9:0",
    ) as server:  # fmt: skip
        client = Client(port)
        client.load("smolvla", str(path), STEPS)
        chunks = [client.act(timestep) for timestep in range(2)]
        with pytest.raises(grpc.RpcError, match="ACT is deterministic"):
            client.load("act", str(checkpoint("act")), STEPS)
    output = (tmp_path / "output.txt").read_text()
    assert server.exitcode == 0, output
    for chunk in chunks:
        assert len(chunk) == AGREED
        assert all(action.get_action().isfinite().all() and action.get_action().shape == (2,) for action in chunk)
    assert "KeyStone on: K=8, rule medoid, adapter smolvla" in output
    assert f"KeyStone compares the {STEPS} steps" in output
    assert "ACT is deterministic" in output
    assert [json.loads(line)["k"] for line in log.read_text().splitlines()] == [8, 8]


def test_unknown_rule_stops_the_server_before_it_serves(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["keystone-policy-server", "--port=9", "--keystone.rule=mediod"])
    monkeypatch.setattr(flag, "process_options", {})
    with pytest.raises(SystemExit, match=r"keystone\.rule=mediod: unknown rule 'mediod': did you mean 'medoid'"):
        policy_server.main()
