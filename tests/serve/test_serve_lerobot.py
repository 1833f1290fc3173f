"""LeRobot's own `RobotClient`, and what it sends, against the server."""

import asyncio
import contextlib
import functools
import importlib
import json
import logging
import os
import pickle
import re
import socket
import tempfile
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import grpc
import numpy as np
import pytest
from lerobot.async_inference.helpers import RemotePolicyConfig, TimedObservation
from lerobot.transport import services_pb2, services_pb2_grpc
from lerobot.transport.utils import send_bytes_in_chunks
from lerobot_policy_keystone.robot_client import send_token
from serving import PointAgent, make_model, serving, state
from test_serve_openpi import wait_until
from test_serve_stalled import call, h2_frame, http2
from two_joints import TwoJointsConfig

from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve.metrics import Metrics
from keystone_robotics.serve.model import Model
from keystone_robotics.serve.policy import load_served
from keystone_robotics.serve.protocols.gate import Gate
from keystone_robotics.serve.replica import Replica
from keystone_robotics.serve.scheduler import Limits
from keystone_robotics.serve.server import running
from keystone_robotics.serve.service import Guard, Service
from keystone_robotics.spec import Spec
from tiny import build
from tiny.checkpoint import save_checkpoint
from tiny.common import features

END, MIDDLE = services_pb2.TransferState.TRANSFER_END, services_pb2.TransferState.TRANSFER_MIDDLE
TOKEN = "correct horse battery staple"
NAMES = {"observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]}}


@pytest.fixture(scope="module")
def robot_client(tmp_path_factory):
    """The module, which configures logging and creates a directory when it is imported."""
    root, before = logging.getLogger(), Path.cwd()
    handlers, level = list(root.handlers), root.level
    os.chdir(tmp_path_factory.mktemp("logs"))
    module = importlib.import_module("lerobot.async_inference.robot_client")
    os.chdir(before)
    root.handlers[:] = handlers
    root.setLevel(level)
    return module


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "two_joints"
    save_checkpoint(build("smolvla", **features(2, 2)), path)
    return path


class Robot:
    """The calls of the robot client, for a policy of three numbers."""

    def __init__(self, port, metadata=()):
        # a connection of its own: channels of one process would share one
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])
        self.stub = services_pb2_grpc.AsyncInferenceStub(self.channel)
        self.metadata = metadata
        self.stub.Ready(services_pb2.Empty(), metadata=metadata, timeout=20)
        rename = {"observation.state": "environment_state"}
        self.instruct(RemotePolicyConfig("point", "point", NAMES, 4, "cpu", rename))

    def instruct(self, instructions):
        setup = services_pb2.PolicySetup(data=pickle.dumps(instructions))
        self.stub.SendPolicyInstructions(setup, metadata=self.metadata, timeout=20)

    def observe(self, first, timestep=0):
        a, b, c = map(float, state(first))
        raw = {"a": a, "b": b, "c": np.float32(c), "task": "push"}
        self.send(pickle.dumps(TimedObservation(time.time(), timestep, raw, True)))

    def send(self, data):
        parts = send_bytes_in_chunks(data, services_pb2.Observation, silent=True)
        self.stub.SendObservations(parts, metadata=self.metadata, timeout=20)

    def actions(self):
        reply, call = self.stub.GetActions.with_call(services_pb2.Empty(), metadata=self.metadata, timeout=20)
        report = dict(call.trailing_metadata()).get("keystone")
        return pickle.loads(reply.data) if reply.data else [], json.loads(report) if report else None


def test_lerobots_robot_client_moves_its_robot(robot_client, checkpoint):
    model = Model(Replica(load_served(str(checkpoint)), Spec.parse("core-mean:k=4")), Limits(max_batch=2))
    model.warm_up()
    with serving("lerobot", model=model, guard=Guard(token=TOKEN)) as (_, ports):
        config = robot_client.RobotClientConfig(
            robot=TwoJointsConfig(), server_address=f"127.0.0.1:{ports['lerobot']}",
            policy_type="smolvla", pretrained_name_or_path=str(checkpoint), actions_per_chunk=7, policy_device="cpu", fps=20,
        )  # fmt: skip
        client = robot_client.RobotClient(config)
        assert not client.start()  # it sends no token, unless told to
        send_token(client, TOKEN)
        assert client.start()
        receiving = threading.Thread(target=client.receive_actions, daemon=True)
        receiving.start()
        moving = threading.Thread(target=client.control_loop, args=("push",), daemon=True)
        moving.start()
        end = time.monotonic() + 60
        while len(client.robot.sent) < 10 and time.monotonic() < end:
            time.sleep(0.02)
        client.stop()
        for thread in (receiving, moving):
            thread.join(20)
        assert len(client.robot.sent) >= 10
        assert all(np.isfinite([action["x"], action["y"]]).all() for action in client.robot.sent)
        assert client.action_chunk_size == 7
        wrong = Robot.__new__(Robot)
        wrong.stub = services_pb2_grpc.AsyncInferenceStub(grpc.insecure_channel(config.server_address))
        wrong.metadata = (("authorization", f"Bearer {TOKEN}"),)
        for kind, name, words in (
            ("act", checkpoint, "type smolvla"),
            ("smolvla", "other/policy", "loads no other policy"),
        ):
            with pytest.raises(grpc.RpcError, match=words):
                wrong.instruct(RemotePolicyConfig(kind, str(name), NAMES, 7))


def test_two_robots_at_once_each_with_its_own_chunk_and_the_newest_observation():
    agent = PointAgent()
    with serving("lerobot", model=make_model(agent=agent)) as (service, ports):
        one, two = Robot(ports["lerobot"]), Robot(ports["lerobot"])
        one.observe(1)
        chunk, report = one.actions()
        assert (len(chunk), chunk[0].timestep, report["k"]) == (4, 0, 8)  # actions_per_chunk of 6 steps
        agent.begun.clear()
        agent.go.clear()
        one.observe(1, timestep=1)
        assert agent.begun.wait(10)
        one.observe(2, timestep=2)
        one.observe(3, timestep=3)  # replaces the one before, which has not begun
        two.observe(4, timestep=9)
        wait_until(lambda: service.model.waiting == 2)
        agent.go.set()
        (second, _), (other, _) = one.actions(), two.actions()
        while second[0].timestep != 3:  # the chunk of timestep 1 may be fetched first
            second, _ = one.actions()
        assert other[0].timestep == 9
        assert agent.batches in ([[1.0], [1.0], [3.0, 4.0]], [[1.0], [1.0], [4.0, 3.0]])


def test_without_an_observation_actions_are_empty_and_errors_are_words():
    with serving("lerobot") as (service, ports):
        robot = Robot(ports["lerobot"])
        assert robot.actions() == ([], None)
        robot.observe(500)
        with pytest.raises(grpc.RpcError, match="the arm is out of reach"):
            robot.actions()
        assert 'keystone_refused_total{reason="model"} 1.0' in service.metrics.render().decode()
        robot.observe(1)
        assert len(robot.actions()[0]) == 4


class Evil:
    def __reduce__(self):
        return os.system, ("touch /nowhere",)


def test_hostile_messages_are_refused_and_the_next_robot_is_served():
    guard = Guard(max_message=100_000, read_timeout=0.5)
    with serving("lerobot", guard=guard) as (_, ports):
        robot = Robot(ports["lerobot"])
        for data in (
            pickle.dumps(Evil()),
            b"junk",
            pickle.dumps({"a": 1}),
            pickle.dumps(TimedObservation(0.0, 0, {"a": 1.0})),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                robot.send(data)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        for raw in ({"a": np.zeros(100), "b": 0.0, "c": 0.0}, {"a": [1.0], "b": 0.0, "c": 0.0}):
            with pytest.raises(grpc.RpcError, match="expected one number"):
                robot.send(pickle.dumps(TimedObservation(0.0, 0, raw, True)))
        rename = {"observation.state": "environment_state"}
        many = {"observation.state": {"dtype": "float32", "shape": (3,), "names": ["a"] * 9999}}
        robot.instruct(RemotePolicyConfig("point", "point", many, 4, "cpu", rename))
        with pytest.raises(grpc.RpcError, match="has 9999 names: the policy takes 3"):
            robot.observe(1)
        with pytest.raises(grpc.RpcError, match="a name in rename_map is a list"):
            robot.instruct(RemotePolicyConfig("point", "point", NAMES, 4, "cpu", {"observation.state": ["x"]}))
        robot.instruct(RemotePolicyConfig("point", "point", NAMES, 4, "cpu", rename))
        with pytest.raises(grpc.RpcError, match=r"larger than 0\.1 MB"):
            robot.send(bytes(200_000))
        part = services_pb2.Observation(transfer_state=MIDDLE, data=b"x")
        with pytest.raises(grpc.RpcError, match="ended before"):
            robot.stub.SendObservations(iter([part]), timeout=20)

        def slow():
            yield part
            time.sleep(3)

        with pytest.raises(grpc.RpcError, match=r"not complete after 0\.5 s"):
            robot.stub.SendObservations(slow(), timeout=20)
        robot.observe(1)
        assert len(robot.actions()[0]) == 4


def test_a_token_is_needed_in_every_call():
    with serving("lerobot", guard=Guard(token=TOKEN)) as (_, ports):
        right = Robot(ports["lerobot"], (("authorization", f"Bearer {TOKEN}"),))
        good = ("authorization", f"Bearer {TOKEN}")
        for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", TOKEN),), (good, good)):
            right.metadata = metadata
            for call in (right.actions, lambda: right.observe(1), lambda: right.instruct(None)):
                with pytest.raises(grpc.RpcError) as caught:
                    call()
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_robot_that_leaves_makes_room_and_nothing_is_computed_for_it():
    agent = PointAgent()
    with serving("lerobot", guard=Guard(max_connections=1), model=make_model(agent=agent)) as (service, ports):
        one = Robot(ports["lerobot"])
        with pytest.raises(grpc.RpcError, match="1 clients are connected already"):
            Robot(ports["lerobot"])
        agent.go.clear()
        one.observe(1)
        assert agent.begun.wait(10)
        one.observe(2, timestep=1)
        wait_until(lambda: service.model.waiting == 1)
        one.channel.close()
        wait_until(lambda: service.connections == service.acting == service.model.waiting == 0)
        agent.go.set()
        wait_until(lambda: service.model.idle)
        assert not service.model._robots
        two = Robot(ports["lerobot"])
        two.observe(3)
        assert len(two.actions()[0]) == 4
    assert agent.batches == [[1.0], [3.0]]


def test_a_robot_that_vanishes_between_two_calls_makes_room(monkeypatch):
    monkeypatch.setattr(grpc.aio, "server", functools.partial(_with_short_times, grpc.aio.server))
    with serving("lerobot", guard=Guard(read_timeout=5)) as (service, ports):
        robot = http2(ports["lerobot"], h2_frame(4, 1), call(1, "Ready"), h2_frame(0, 1, 1, bytes(5)))
        wait_until(lambda: service.connections == 1)
        begin, answers = time.monotonic(), 0
        while time.monotonic() < begin + 0.5:  # kept while it answers
            with contextlib.suppress(TimeoutError):
                pings = re.findall(rb"\0\0\x08\x06\0\0\0\0\0(.{8})", robot.recv(65536), re.DOTALL)
                robot.sendall(b"".join(h2_frame(6, 1, data=ping) for ping in pings))
                answers += len(pings)
        assert answers > 1
        assert service.connections == 1
        wait_until(lambda: service.connections == 0)
        robot.close()


def _with_short_times(make_server, options):
    short = {"grpc.keepalive_time_ms": 100, "grpc.http2.ping_timeout_ms": 500}
    return make_server(options=[(name, short.get(name, value)) for name, value in options])


@pytest.fixture
def temporary(monkeypatch):
    """Makes a folder with a short path the one for temporary files, in which nothing is to stay."""
    with tempfile.TemporaryDirectory(prefix="a %41%b é", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        assert not list(Path(folder).iterdir())


def test_the_temporary_folder_may_have_any_name_that_is_short(temporary, monkeypatch):
    with serving("lerobot") as (_, ports):
        Robot(ports["lerobot"]).channel.close()
    long = temporary / ("a" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(KeystoneError, match="set TMPDIR to a shorter path"), serving("lerobot"):
        pass
    long.rmdir()  # is empty


@pytest.mark.usefixtures("temporary")
def test_of_a_port_that_is_in_use_nothing_stays(monkeypatch):
    make_server, made = grpc.aio.server, []
    monkeypatch.setattr(
        grpc.aio, "server", lambda options: made.append(Mock(wraps=make_server(options=options))) or made[0]
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        service = Service(make_model(warm=False), Guard(), Metrics())
        with pytest.raises(KeystoneError, match="cannot serve"), running(service, {"lerobot": other.getsockname()[1]}):
            pass
    made[0].stop.assert_called_once()


def test_what_the_server_behind_the_gate_has_written_is_sent_when_the_gate_closes():
    async def converse():
        gate = Gate(Service(make_model(warm=False), Guard(), Metrics()), "lerobot")
        written = asyncio.Event()

        async def reply(reader, writer):
            await reader.read(1)
            writer.write(bytes(100_000))
            writer.close()
            written.set()

        async with await asyncio.start_unix_server(reply, gate.inner):
            await gate.listen("127.0.0.1", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
            writer.write(b"x")
            await written.wait()
            await gate.close()
            received = await reader.read()
            writer.close()
        return len(received)

    assert asyncio.run(converse()) == 100_000
