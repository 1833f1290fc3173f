"""Clients that are not what they should be, over real sockets: each ends its own connection and nobody else's."""

import asyncio
import contextlib
import dataclasses
import logging
import re
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import msgpack
import numpy as np
import pytest
import torch
import websockets
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from openpi_client import msgpack_numpy
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from serving import STATE, PointAgent, flow_policy, make_model, serving, state
from test_serve_openpi import connect, in_threads, wait_until
from websockets.sync.client import connect as open_socket

from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve.address import check_address, make_tls
from keystone_robotics.serve.logs import TextLines
from keystone_robotics.serve.messages import Refused
from keystone_robotics.serve.model import Model
from keystone_robotics.serve.policy import ServedMessages
from keystone_robotics.serve.protocols import openpi
from keystone_robotics.serve.protocols.arrays import MOST_ARRAYS, pack_groot, pack_openpi, unpack
from keystone_robotics.serve.protocols.decoding import LARGE, decode
from keystone_robotics.serve.replica import Replica
from keystone_robotics.serve.service import Guard
from keystone_robotics.spec import Spec

TOKEN = "correct horse battery staple"


@pytest.fixture(scope="module")
def server():
    guard = Guard(max_message=100_000, read_timeout=0.5, idle_timeout=3.0, max_connections=8)
    with serving("openpi", guard=guard) as (service, ports):
        yield service, ports


def still_serves(ports):
    client = connect(ports)
    reply = client.infer({STATE: state(1)})
    client._ws.close()
    return reply["actions"].shape == (6, 2)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\xc1", "not a valid message"),
        (b"", "not a valid message"),
        ("text", "the message is text"),
        (msgpack.packb([1, 2]), "the message is a list"),
        (
            msgpack.packb({"a": {b"__ndarray__": True, b"data": b"1", b"dtype": "|O", b"shape": [1]}}),
            "expected numbers or text",
        ),
        (
            msgpack.packb({"a": {b"__ndarray__": True, b"data": b"", b"dtype": "<f8", b"shape": [10**12]}}),
            "does not match",
        ),
        (b"\x91" * 5000, "not a valid message"),
    ],
)
def test_a_malformed_message_is_answered_in_words_and_ends_its_connection(server, message, words):
    _, ports = server
    with open_socket(f"ws://127.0.0.1:{ports['openpi']}") as connection:
        connection.recv()
        connection.send(message)
        assert words in connection.recv()
        with pytest.raises(websockets.ConnectionClosed):
            connection.recv()
    assert still_serves(ports)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"keystone_seed": "x"}, "keystone_seed='x': expected a whole number"),
        ({"keystone_deadline_ms": -1}, "expected a number above 0"),
        ({b"state": 1}, "a key that is not text"),
    ],
)
def test_a_wrong_value_is_answered_in_words_and_the_connection_goes_on(server, message, words):
    _, ports = server
    client = connect(ports)
    with pytest.raises(RuntimeError, match=words):
        client.infer(message)
    assert client.infer({STATE: state(1), "keystone_episode": ""})["actions"].shape == (6, 2)
    client._ws.close()


def test_a_name_does_not_forge_a_line_of_the_log():
    record = logging.LogRecord("keystone", logging.INFO, "", 0, "refused", None, None)
    record.fields = {"client": "arm\n2026 INFO forged", "reason": "full"}
    assert TextLines("%(message)s").format(record) == r"refused client='arm\n2026 INFO forged' reason=full"


def test_an_oversized_message_ends_its_connection(server):
    _, ports = server
    client = connect(ports)
    with pytest.raises(websockets.ConnectionClosed):
        client.infer({STATE: np.zeros(100_000)})
    assert still_serves(ports)


def test_handshakes_that_never_end_are_closed_and_slow_ones_make_room(server):
    _, ports = server
    sockets = [socket.create_connection(("127.0.0.1", ports["openpi"])) for _ in range(40)]
    for one in sockets:
        one.settimeout(5)
        one.sendall(b"GET / HTTP/1.1\r\n")
    begin = time.monotonic()
    for one in sockets:
        with contextlib.suppress(ConnectionResetError):
            while one.recv(1000):
                pass
    assert time.monotonic() - begin < 5
    assert still_serves(ports)


def test_an_idle_and_a_half_closed_connection_are_ended(server):
    service, ports = server
    before = service.connections
    idle = open_socket(f"ws://127.0.0.1:{ports['openpi']}", legacy=True)
    half = open_socket(f"ws://127.0.0.1:{ports['openpi']}", legacy=True)
    half.socket.shutdown(socket.SHUT_WR)
    wait_until(lambda: service.connections <= before, 10)
    idle.recv()
    with pytest.raises(websockets.ConnectionClosed, match="no message for 3 s"):
        idle.recv()


def test_nothing_is_computed_for_a_client_that_has_gone():
    agent = PointAgent()
    with serving("openpi", model=make_model(agent=agent)) as (service, ports):
        agent.go.clear()
        busy = connect(ports)
        busy._ws.send(msgpack_numpy.packb({STATE: state(1)}))
        assert agent.begun.wait(10)
        gone = connect(ports)
        gone._ws.send(msgpack_numpy.packb({STATE: state(2)}))
        wait_until(lambda: service.model.waiting == 1)
        gone._ws.socket.close()
        wait_until(lambda: service.model.waiting == 0)
        agent.go.set()
        assert busy._ws.recv()
    assert agent.batches == [[1.0]]


def test_too_many_connections_are_refused_in_words():
    with serving("openpi", guard=Guard(max_connections=2)) as (_, ports):
        kept = [connect(ports), connect(ports)]
        with pytest.raises(websockets.InvalidStatus) as caught:
            connect(ports)
        assert (caught.value.response.status_code, b"2 clients are connected" in caught.value.response.body) == (
            503,
            True,
        )
        kept[0]._ws.close()
        wait_until(lambda: in_threads([lambda: still_serves(ports)])[0] is True)


def test_openpis_api_key_is_checked():
    with serving("openpi", guard=Guard(token=TOKEN)) as (_, ports):
        assert connect(ports, api_key=TOKEN).infer({STATE: state(1)})["actions"].shape == (6, 2)
        for key in (None, "wrong", TOKEN + "x", TOKEN[:-1]):
            with pytest.raises(websockets.InvalidStatus) as caught:
                connect(ports, api_key=key)
            assert caught.value.response.status_code == 401
        page = f"http://127.0.0.1:{ports['openpi']}"
        assert urllib.request.urlopen(f"{page}/healthz").read() == b"OK\n"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{page}/metrics")


def test_web_pages_are_refused(server):
    _, ports = server
    with pytest.raises(websockets.InvalidStatus) as caught:
        open_socket(f"ws://127.0.0.1:{ports['openpi']}", origin="http://example.com", legacy=True)
    assert caught.value.response.status_code == 403


def test_tls(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "1", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True,
    )  # fmt: skip
    with serving("openpi", tls=make_tls(cert, key)) as (_, ports):
        with open_socket(
            f"wss://127.0.0.1:{ports['openpi']}", ssl=ssl.create_default_context(cafile=str(cert)), compression=None
        ) as connection:
            connection.recv()
            connection.send(msgpack_numpy.packb({STATE: state(1)}))
            assert msgpack_numpy.unpackb(connection.recv())["actions"].shape == (6, 2)
        with pytest.raises((OSError, websockets.WebSocketException)):
            WebsocketClientPolicy("127.0.0.1", ports["openpi"])


def test_addresses_that_would_serve_strangers_are_refused(tmp_path):
    with pytest.raises(KeystoneError, match="open to the network"):
        check_address("0.0.0.0", {"openpi": 0}, None, False, None)
    check_address("0.0.0.0", {"openpi": 0}, TOKEN, False, None)
    check_address("0.0.0.0", {"openpi": 0}, None, True, None)
    with pytest.raises(KeystoneError, match="both --tls-cert and --tls-key"):
        make_tls(tmp_path / "cert", None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(KeystoneError, match="is in use"):
            check_address("127.0.0.1", {"openpi": taken.getsockname()[1]}, None, False, None)


@pytest.mark.parametrize(
    ("data", "dtype"), [(["a"], "U9999"), ("a", "U9999"), ([1], "<f8"), ("a", "S9999"), (None, "<f8")]
)
def test_a_numpy_scalar_is_one_number(data, dtype):
    with pytest.raises(Refused, match="not a number"):
        unpack(msgpack.packb({"__npgeneric__": True, "data": data, "dtype": dtype}))
    assert unpack(msgpack.packb({"__npgeneric__": True, "data": 1.5, "dtype": "<f4"})) == np.float32(1.5)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("code_point", [0x110000, 0xFFFFFFFF])
def test_text_in_arrays_is_unicode(order, code_point):
    def message(*numbers):
        data = np.array(numbers, f"{order}u4").tobytes()
        shape = [len(numbers) // 2]
        return msgpack.packb({b"__ndarray__": True, b"data": data, b"dtype": f"{order}U2", b"shape": shape})

    with pytest.raises(Refused, match="text that is not Unicode"):
        unpack(message(97, code_point))
    assert unpack(message(97, 0x10FFFF)).tolist() == ["a\U0010ffff"]
    assert unpack(message()).tolist() == []


def test_a_message_has_a_limited_number_of_arrays():
    for pack in (pack_openpi, pack_groot):
        assert len(unpack(pack([np.zeros(1)] * MOST_ARRAYS))) == MOST_ARRAYS
        with pytest.raises(Refused, match="more than 1000 arrays"):
            unpack(pack([np.zeros(1)] * (MOST_ARRAYS + 1)))


@pytest.mark.parametrize(("size", "in_loop"), [(LARGE, True), (LARGE + 1, False)])
def test_large_messages_are_decoded_in_a_thread(size, in_loop):
    decoded_in = asyncio.run(decode(lambda message: threading.current_thread(), bytes(size)))
    assert (decoded_in is threading.current_thread()) == in_loop


@pytest.mark.parametrize("pack", [pack_openpi, pack_groot])
@pytest.mark.parametrize(
    "value", [torch.zeros(2), np.array([None, 1]), np.zeros(2, "M8[s]"), np.zeros(2, complex), np.complex64(1), 2**70]
)
def test_what_a_client_cannot_read_is_not_sent(pack, value):
    with pytest.raises(Refused, match="the policy's reply cannot be sent"):
        pack({"actions": value})


def test_a_reply_that_cannot_be_sent_is_an_error_in_words_and_the_connection_goes_on(monkeypatch):
    class Policy:
        def infer(self, observation):
            return {"actions": torch.zeros(2) if observation["tensor"] else np.zeros(2)}

    served = ServedMessages("mine:policy", Policy(), {"tensor": False})
    served.policy = flow_policy()
    model = Model(Replica(served, Spec.parse("core-mean:k=4")))
    with serving("openpi", model=model) as (service, ports):
        client = connect(ports)
        with pytest.raises(RuntimeError, match="the policy's reply cannot be sent: a Tensor cannot be sent"):
            client.infer({"tensor": True})
        assert client.infer({"tensor": False})["actions"].shape == (2,)
        with monkeypatch.context() as broken:
            broken.setattr(openpi, "packed", lambda reply: 1 / 0)
            with pytest.raises(RuntimeError, match="the server failed: ZeroDivisionError"):
                client.infer({"tensor": False})
        assert client.infer({"tensor": False})["actions"].shape == (2,)
        assert 'keystone_refused_total{reason="model"} 2.0' in service.metrics.render().decode()


def test_a_refused_request_is_counted_once_whoever_refuses_it():
    before_the_model = {"endpoint": "kill", "type": "kill", "keystone_seed": "x"}
    by_the_model = {"examples": [{}], "data": {"observation": {"state": {"state": np.zeros((1, 1, 9))}}}}
    with serving("openpi", "roboarena", "starvla", "groot") as (service, ports):
        counted = []
        for protocol, port in ports.items():
            if protocol == "groot":
                client = zmq.Context.instance().socket(zmq.REQ)
                client.connect(f"tcp://127.0.0.1:{port}")
            else:
                client = open_socket(f"ws://127.0.0.1:{port}")
                client.recv()
            for message in (before_the_model, by_the_model):
                client.send(pack_openpi(message))
                client.recv()
                counts = re.findall(r"refused_total{.*} (\d+)", service.metrics.render().decode())
                counted.append(sum(map(int, counts)))
            client.close()
    assert counted == list(range(1, 9))


@pytest.mark.parametrize("protocol", ["openpi", "roboarena", "starvla"])
def test_metadata_that_cannot_be_sent_are_an_error_before_the_port_is_opened(protocol):
    model = make_model(warm=False)
    model.interface = dataclasses.replace(model.interface, metadata={"action_space": torch.zeros(2)})
    words = "the policy's metadata cannot be sent: a Tensor"
    with pytest.raises(KeystoneError, match=words), serving(protocol, model=model):
        pass


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_refusal(data):
    with contextlib.suppress(Refused):
        unpack(data)
