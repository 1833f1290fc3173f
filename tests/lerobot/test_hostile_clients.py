"""`keystone-policy-server` and clients that are not what they should be, over real gRPC channels on this machine."""

import asyncio
import builtins
import functools
import importlib
import io
import logging
import os
import pickle
import socket
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from lerobot.async_inference.helpers import RemotePolicyConfig, TimedObservation
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.transport import services_pb2, services_pb2_grpc
from lerobot.transport.utils import send_bytes_in_chunks

from keystone_robotics.errors import KeystoneError
from lerobot_policy_keystone import flag, policy_server
from lerobot_policy_keystone.policy_server import KeystonePolicyServerConfig
from tiny import build
from tiny.checkpoint import save_checkpoint
from tiny.common import features

pytestmark = pytest.mark.xdist_group("lerobot-commands")
END = services_pb2.TransferState.TRANSFER_END
MIDDLE = services_pb2.TransferState.TRANSFER_MIDDLE
TOKEN = "correct horse battery staple"


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """The module; LeRobot's server and client configure logging and create a directory when they are imported."""
    root, before = logging.getLogger(), Path.cwd()
    handlers, level = list(root.handlers), root.level
    os.chdir(tmp_path_factory.mktemp("logs"))
    importlib.import_module("lerobot.async_inference.robot_client")

    from lerobot_policy_keystone import serving

    os.chdir(before)
    root.handlers[:] = handlers
    root.setLevel(level)
    return serving


@pytest.fixture
def port():
    """One that nobody else is given until the server, which may share it, has it."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@contextmanager
def running(serving, port, host="127.0.0.1", **options):
    """A server in a thread; yields LeRobot's server behind it."""
    config = KeystonePolicyServerConfig(host=host, port=port, obs_queue_timeout=0.2, **options)
    behind = serving.KeystonePolicyServer(config)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(serving.start(config, behind), loop).result(60)
        yield behind
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@pytest.fixture
def channel(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened


def observation(timestep=0, **values):
    image = np.random.default_rng(timestep).integers(0, 255, (96, 96, 3), dtype=np.uint8)
    raw = {"x": 100.0, "y": np.float32(200), "image": image, "t": torch.arange(3.0), "task": "push", **values}
    return TimedObservation(timestamp=time.time(), timestep=timestep, observation=raw, must_go=True)


def stream(data):
    return send_bytes_in_chunks(data, services_pb2.Observation, silent=True)


class Calls:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def attacks(folder):
    shell = Calls(os.system, f"echo x > {folder}/pwned")
    storage = io.BytesIO()
    torch.save(shell, storage, _use_new_zipfile_serialization=False)
    return [
        shell,
        Calls(builtins.eval, f"open({f'{folder}/pwned'!r}, 'w').close()"),
        Calls(functools.partial(os.system, f"echo x > {folder}/pwned")),
        Calls(torch.storage._load_from_bytes, storage.getvalue()),
        observation(x=shell),
        RemotePolicyConfig("smolvla", shell, {}, 1, "cpu"),
    ]


def test_hostile_pickles_do_nothing_in_both_calls(serving, port, channel, tmp_path):
    with running(serving, port) as behind:
        stub = services_pb2_grpc.AsyncInferenceStub(channel)
        stub.Ready(services_pb2.Empty())
        for attack in attacks(tmp_path):
            data = pickle.dumps(attack)
            for call in (
                lambda data=data: stub.SendPolicyInstructions(services_pb2.PolicySetup(data=data)),
                lambda data=data: stub.SendObservations(stream(data)),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    call()
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert "not accepted" in caught.value.details()
        assert not list(tmp_path.iterdir())
        assert behind.policy is None
        assert behind.observation_queue.empty()


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"a": 1}, "message is a dict: expected a TimedObservation"),
        (TimedObservation(0.0, np.zeros(2), {}), "timestep is a ndarray: expected a int"),
        (TimedObservation(float("nan"), 0, {}), "timestamp=nan: expected a finite number"),
        (TimedObservation(0.0, 0, [1]), "observation is a list: expected a dict"),
        (TimedObservation(0.0, 0, {}, np.ones(3)), "must_go is a ndarray"),
    ],
)
def test_observations_that_would_break_the_server_are_refused(serving, message, problem):
    with pytest.raises(KeystoneError, match=problem):
        serving.read_observation(pickle.dumps(message))


@pytest.mark.parametrize("steps", [0, -1, True, 1.5])
def test_a_number_of_steps_that_no_chunk_has_is_refused(serving, steps):
    with pytest.raises(KeystoneError, match="actions_per_chunk"):
        serving.read_instructions(pickle.dumps(RemotePolicyConfig("smolvla", "p", {}, steps, "cpu")))


def test_observations_and_instructions_arrive_bit_for_bit(serving, port, channel):
    sent = observation(7)
    with running(serving, port) as behind:
        services_pb2_grpc.AsyncInferenceStub(channel).SendObservations(stream(pickle.dumps(sent)))
        got = behind.observation_queue.get(timeout=10)
    assert (got.timestamp, got.timestep, got.must_go) == (sent.timestamp, sent.timestep, sent.must_go)
    assert list(got.observation) == list(sent.observation)
    for name, value in sent.observation.items():
        assert type(got.observation[name]) is type(value)
        assert pickle.dumps(got.observation[name]) == pickle.dumps(value) or torch.equal(got.observation[name], value)

    names = {"observation.state": PolicyFeature(FeatureType.STATE, (2,)), "x": {"dtype": "float32", "shape": (2,)}}
    specs = RemotePolicyConfig("smolvla", "some/path", names, 7, "cpu", {"a": "b"})
    assert serving.read_instructions(pickle.dumps(specs)) == specs


@pytest.mark.parametrize("token", [None, TOKEN])
def test_lerobots_robot_client(serving, port, tmp_path, monkeypatch, token):
    """The real client acts on the chunk of a real policy; with a token it needs our line."""
    from lerobot.async_inference.configs import RobotClientConfig
    from lerobot.async_inference.robot_client import RobotClient
    from two_joints import TwoJointsConfig

    from lerobot_policy_keystone.robot_client import send_token

    monkeypatch.chdir(tmp_path)
    save_checkpoint(build("smolvla", **features(2, 2)), tmp_path / "checkpoint")
    options = {"checkpoints": [str(tmp_path / "checkpoint")]}
    if token:
        (tmp_path / "token").write_text(f"{token}\n")
        options["token_file"] = str(tmp_path / "token")
    with running(serving, port, **options):
        config = RobotClientConfig(
            "smolvla", str(tmp_path / "checkpoint"), TwoJointsConfig(), 7, "push", f"127.0.0.1:{port}"
        )
        client = RobotClient(config)
        if token:
            assert not client.start()  # refused
            send_token(client, token)
        assert client.start()
        receiver = threading.Thread(target=client.receive_actions, daemon=True)
        receiver.start()
        client.start_barrier.wait()
        client.control_loop_observation("push")
        end = time.monotonic() + 60
        while not client.actions_available() and time.monotonic() < end:
            time.sleep(0.02)
        assert client.action_queue.qsize() == 7
        assert set(client.control_loop_action()) == {"x", "y"}
        client.stop()
        receiver.join()


def test_checkpoints_that_are_not_on_the_list_are_not_loaded(serving, port, channel):
    with running(serving, port, checkpoints=["mine/policy"]):
        specs = RemotePolicyConfig("smolvla", "stranger/policy", {}, 7, "cpu")
        with pytest.raises(grpc.RpcError, match="'stranger/policy' is not one of --checkpoints"):
            services_pb2_grpc.AsyncInferenceStub(channel).SendPolicyInstructions(
                services_pb2.PolicySetup(data=pickle.dumps(specs))
            )


@pytest.mark.parametrize("second", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_second_server_on_a_port_is_refused(serving, port, second):
    with (
        running(serving, port),
        pytest.raises(KeystoneError, match=f"port {port} of {second} is in use"),
        running(serving, port, host=second, insecure=True),
    ):
        pass


def test_the_port_of_a_server_that_shares_ports_is_refused_too(serving, port):
    """LeRobot's own server sets SO_REUSEPORT."""
    other = grpc.server(None)
    other.add_insecure_port(f"127.0.0.1:{port}")
    other.start()
    with pytest.raises(KeystoneError, match="is in use"), running(serving, port):
        pass
    other.stop(0).wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host=0.0.0.0"], r"host 0\.0\.0\.0 is open to the network: expected 127\.0\.0\.1"),
        (["--host=192.168.1.5"], "is open to the network"),
        (["--host=0.0.0.0", "--token_file=missing"], "token file missing cannot be read"),
        (["--host=0.0.0.0", "--token_file=short"], "has 3 characters: expected 16 or more"),
    ],
)
def test_an_address_that_is_open_to_a_network_needs_a_token(serving, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("abc")
    monkeypatch.setattr(sys, "argv", ["keystone-policy-server", "--port=9", *arguments])
    monkeypatch.setattr(flag, "process_options", {})
    with pytest.raises(SystemExit, match=f"keystone-policy-server: .*{message}"):
        policy_server.main()


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),), (("authorization", TOKEN),)])
def test_a_wrong_token_is_refused_in_every_call(serving, port, channel, tmp_path, metadata):
    (tmp_path / "token").write_text(TOKEN)
    with running(serving, port, host="0.0.0.0", token_file=str(tmp_path / "token")) as behind:
        stub = services_pb2_grpc.AsyncInferenceStub(channel)
        sending = threading.Event()

        def idle():
            sending.wait(60)
            yield from ()

        for call, request in (
            (stub.Ready, services_pb2.Empty()),
            (stub.GetActions, services_pb2.Empty()),
            (stub.SendPolicyInstructions, services_pb2.PolicySetup(data=b"")),
            (stub.SendObservations, stream(pickle.dumps(observation()))),
            (stub.SendObservations, idle()),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call(request, metadata=metadata, timeout=30)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        sending.set()
        assert behind.observation_queue.empty()
        stub.Ready(services_pb2.Empty(), metadata=(("authorization", f"Bearer {TOKEN}"),))


def test_observations_over_the_limit_are_refused(serving, port, channel):
    with running(serving, port, max_message_mb=5) as behind:
        stub = services_pb2_grpc.AsyncInferenceStub(channel)
        stub.SendObservations(stream(pickle.dumps(observation(image=np.zeros(4_900_000, np.uint8)))))
        behind.observation_queue.get(timeout=10)
        sent = []

        def endless():
            for _ in range(1000):
                sent.append(1)
                yield services_pb2.Observation(transfer_state=MIDDLE, data=bytes(10**6))

        with pytest.raises(grpc.RpcError, match="larger than 5 MB") as caught:
            stub.SendObservations(endless())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(sent) < 100
        with pytest.raises(grpc.RpcError) as caught:  # one part
            stub.SendObservations(iter([services_pb2.Observation(transfer_state=END, data=bytes(5 * 2**20))]))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert behind.observation_queue.empty()


def test_idle_and_slow_streams_hold_nobody_up_and_end(serving, port, channel):
    release = threading.Event()

    def idle():
        release.wait(60)
        yield from ()

    def slow():
        while not release.wait(0.05):
            yield services_pb2.Observation(transfer_state=MIDDLE, data=b"x")

    with running(serving, port, stream_timeout=3) as behind:
        stub = services_pb2_grpc.AsyncInferenceStub(channel)
        waiting = [stub.SendObservations.future(kind()) for kind in [idle, slow] * 20]
        time.sleep(0.3)
        begin = time.monotonic()
        for timestep in range(3):
            stub.SendObservations(stream(pickle.dumps(observation(timestep))), timeout=10)
            assert behind.observation_queue.get(timeout=10).timestep == timestep
        assert time.monotonic() - begin < 2.5
        assert not any(call.done() for call in waiting)
        for call in waiting:
            assert call.exception(timeout=30).code() == grpc.StatusCode.ABORTED
            assert "not complete after 3 s" in call.details()
        release.set()


def test_a_stream_that_ends_too_early_is_refused(serving, port, channel):
    with running(serving, port), pytest.raises(grpc.RpcError, match="ended before the observation was complete"):
        services_pb2_grpc.AsyncInferenceStub(channel).SendObservations(iter([]))
