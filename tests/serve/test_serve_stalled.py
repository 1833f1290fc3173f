"""Clients that begin something and do not go on, on every port, and those that send too much of it: the others are served.

Strangers have no token here. What they send is written byte by byte, since no client's library would send it.
"""

import base64
import contextlib
import gc
import itertools
import os
import socket
import struct
import time
from unittest.mock import Mock

import grpc
import msgpack
import numpy as np
import pytest
from lerobot.transport import services_pb2, services_pb2_grpc
from serving import STATE, serving, state
from test_serve_groot import Client as GrootClient
from test_serve_openpi import connect, in_threads, wait_until
from websockets.asyncio.server import ServerConnection
from websockets.protocol import State

from keystone_robotics.serve.service import Guard

TOKEN = "correct horse battery staple"
GUARD = Guard(TOKEN, max_connections=4, max_message=1_000_000, read_timeout=0.4)
MORE, LONG, COMMAND = 1, 2, 4


@pytest.fixture(scope="module")
def server():
    with serving("openpi", "starvla", "groot", "lerobot", guard=GUARD, metrics_port=0) as (service, ports):
        yield service, ports


def open_port(port):
    stranger = socket.create_connection(("127.0.0.1", port))
    stranger.settimeout(0.1)
    return stranger


def upgraded(port):
    """A WebSocket with the token."""
    client = open_port(port)
    client.settimeout(10)
    key = base64.b64encode(os.urandom(16)).decode()
    client.sendall(
        f"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\nAuthorization: Api-Key {TOKEN}\r\n\r\n".encode()
    )
    assert client.recv(4096).startswith(b"HTTP/1.1 101")
    client.settimeout(0.1)
    return client


def ws_frame(opcode, data=b"", fin=True, size=None):
    size = len(data) if size is None else size
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 127]) + struct.pack(">Q", size)
    return bytes([0x80 * fin | opcode]) + length + bytes(4) + data


def zmtp(port):
    """A ZeroMQ connection after its handshake."""
    client = open_port(port)
    client.settimeout(10)
    client.sendall(b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 3) + b"REQ"
    client.sendall(bytes([COMMAND, len(ready)]) + ready)
    greeting = b""
    while not greeting.endswith(b"ROUTER"):
        greeting += client.recv(1000)
    client.settimeout(0.1)
    return client


def zmtp_frame(flags, data=b"", size=None):
    return bytes([flags | LONG]) + struct.pack(">Q", len(data) if size is None else size) + data


def http2(port, *frames):
    client = open_port(port)
    client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + h2_frame(4) + b"".join(frames))
    return client


def h2_frame(kind, flags=0, stream=0, data=b""):
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data


def call(stream, name):
    """The headers of a gRPC call whose message is still to come."""
    headers = {
        ":method": "POST", ":scheme": "http", ":path": f"/transport.AsyncInference/{name}", ":authority": "x",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    coded = b"".join(b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in headers.items())
    return h2_frame(1, 4, stream, coded)


def wait_until_closed(client, drip=b"", most=30.0):
    """Wait until the server has closed a connection on which bytes drip."""
    begin = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while True:
            assert time.monotonic() - begin < most, "the server waits"
            with contextlib.suppress(TimeoutError):
                client.sendall(drip)
                if not client.recv(65536):
                    break


def all_serve(ports):
    """A client of each protocol gets its answer."""
    client = connect(ports, api_key=TOKEN)
    assert client.infer({STATE: state(1)})["actions"].shape == (6, 2)
    client._ws.close()
    robot = GrootClient(ports["groot"], token=TOKEN)
    assert robot.act(1)[0]["action"].shape == (1, 6, 2)
    robot.socket.close()
    with grpc.insecure_channel(f"127.0.0.1:{ports['lerobot']}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = services_pb2_grpc.AsyncInferenceStub(channel)
        stub.Ready(services_pb2.Empty(), metadata=(("authorization", f"Bearer {TOKEN}"),), timeout=5)


STALLED = {
    "silent": (open_port, b""),
    "bytes of nothing": (open_port, b"G"),
    "headers that do not end": (lambda port: _sent(open_port(port), b"GET / HTTP/1.1\r\n"), b"X-A: b\r\n"),
}
STALLED_ON = {
    "openpi": {
        "a frame": (lambda port: _sent(upgraded(port), ws_frame(2, size=900_000)), b"x"),
        "fragments": (lambda port: _sent(upgraded(port), ws_frame(2, b"x", fin=False)), ws_frame(0, b"x", fin=False)),
        "fragments and pings": (
            lambda port: _sent(upgraded(port), ws_frame(2, b"x", fin=False)), ws_frame(9, b"x"),
        ),
    },
    "groot": {
        "a greeting": (lambda port: _sent(open_port(port), b"\xff"), b"\0"),
        "an old version": (lambda port: _sent(open_port(port), b"\xff" + bytes(8) + b"\x7f\x01"), b"\0" * 60),
        "a part": (lambda port: _sent(zmtp(port), b"\x01\0" + zmtp_frame(0, size=900_000)), b"x"),
        "parts without an end": (lambda port: _sent(zmtp(port), b"\x01\0"), zmtp_frame(MORE, b"x")),
        "a message without a delimiter": (zmtp, zmtp_frame(0, b"x")),
        "too large a part": (lambda port: _sent(zmtp(port), b"\x01\0" + zmtp_frame(0, size=2**62)), b"x"),
    },
}  # fmt: skip


def _sent(client, data):
    client.sendall(data)
    return client


@pytest.mark.parametrize(
    ("protocol", "how"),
    [*itertools.product(("openpi", "starvla", "metrics", "groot", "lerobot"), STALLED),
     *((protocol, how) for protocol, ways in STALLED_ON.items() for how in ways)],
)  # fmt: skip
def test_a_connection_on_which_bytes_drip_is_closed(server, protocol, how):
    _, ports = server
    begin, drip = {**STALLED, **STALLED_ON.get(protocol, {})}[how]
    wait_until_closed(begin(ports[protocol]), drip)


def test_a_grpc_connection_on_which_no_call_has_the_token_is_closed(server):
    _, ports = server
    wait_until_closed(http2(ports["lerobot"], h2_frame(4, 1), call(1, "Ready")), h2_frame(6, data=b"12345678"))


def test_nobody_else_is_kept_from_being_served(server):
    service, ports = server
    half = [upgraded(ports["openpi"]), zmtp(ports["groot"])]
    for one in half:
        one.shutdown(socket.SHUT_WR)
    many = 3 * GUARD.max_connections
    kept = [open_port(ports[name]) for name in ports for _ in range(many)]
    kept += [zmtp(ports["groot"]) for _ in range(many)]
    calls = [
        call(2 * number + 1, name) for number, name in enumerate(("Ready", "GetActions", "SendPolicyInstructions"))
    ]
    kept += [http2(ports["lerobot"], *calls) for _ in range(many)]
    all_serve(ports)
    wait_until(lambda: service.connections == 0)
    for one in (*half, *kept):
        one.close()


def test_messages_that_are_not_complete_take_a_bounded_amount_of_memory():
    with serving("openpi", "groot", guard=Guard(TOKEN, max_message=1_000_000)) as (_, ports):
        websockets = [upgraded(ports["openpi"]) for _ in range(6)]
        for one in websockets:
            one.sendall(ws_frame(2, bytes(900_000), size=999_000))
        strangers = [_sent(zmtp(ports["groot"]), b"\x01\0" + zmtp_frame(0, bytes(900_000), 999_000)) for _ in range(6)]
        for clients in (websockets, strangers):  # together at most four messages' worth: the oldest are closed
            wait_until(
                lambda some=clients: [_is_open(one) for one in some] == [False, False, True, True, True, True], 5
            )


def _is_open(client):
    try:
        while client.recv(65536):  # what the server said before
            pass
    except TimeoutError:
        return True
    except ConnectionError:
        pass
    return False


@pytest.mark.parametrize("full", [True, False])
def test_a_client_that_reads_again_is_read_only_if_there_is_room_for_what_it_sends(server, full):
    _, ports = server
    client = upgraded(ports["openpi"])
    name = client.getsockname()
    (connection,) = (
        one for one in gc.get_objects()
        if ServerConnection in type(one).__mro__ and one.state is State.OPEN and one.remote_address == name
    )  # fmt: skip
    connection.transport, transport = Mock(), connection.transport
    connection.recv_messages.paused = full
    connection.pause_writing()
    connection.resume_writing()
    assert connection.transport.pause_reading.called
    assert connection.transport.resume_reading.called is not full
    connection.transport = transport
    client.close()


def test_a_flood_of_pings_does_not_starve_the_others(server):
    _, ports = server
    honest = connect(ports, api_key=TOKEN)
    honest.infer({STATE: state(1)})
    flooding = upgraded(ports["openpi"])
    pings = ws_frame(9, b"x" * 125) * 4000
    end = time.monotonic() + 1

    def flood():
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError, BlockingIOError):
                flooding.send(pings)  # and never reads

    def act():
        longest = 0.0
        while time.monotonic() < end:
            begin = time.monotonic()
            honest.infer({STATE: state(1)})
            longest = max(longest, time.monotonic() - begin)
        return longest

    _, longest = in_threads([flood, act])
    assert longest < 10  # it was 18 s on a machine where this takes 0.1 s
    flooding.close()
    honest._ws.close()


def test_zeromqs_pings_are_answered_while_a_reply_is_computed(server):
    _, ports = server
    client = zmtp(ports["groot"])
    client.sendall(bytes([COMMAND, 9]) + b"\x04PING\0\x0aab")
    client.settimeout(10)
    assert client.recv(100) == bytes([COMMAND, 7]) + b"\x04PONGab"
    client.sendall(b"\x01\0" + zmtp_frame(0, msgpack.packb({"endpoint": "ping", "api_token": TOKEN})))
    assert b"Server is running" in client.recv(1000)
    client.close()


@pytest.mark.parametrize("headers", [b"X: " + b"a" * 10_000, b"X: a\r\n" * 1000])
def test_strange_headers_are_refused(server, headers):
    _, ports = server
    for name in ("openpi", "metrics"):
        client = open_port(ports[name])
        client.settimeout(10)
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n\r\n")
        assert client.recv(100).split()[1] in (b"431", b"400")


def test_what_follows_a_request_is_no_error_of_the_server(server, caplog):
    _, ports = server
    client = _sent(open_port(ports["openpi"]), b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + b"junk")
    client.settimeout(10)
    assert client.recv(100) == b""
    all_serve(ports)
    assert not caplog.records


def test_a_token_that_is_sent_several_times_counts_only_if_it_is_the_only_one(server):
    _, ports = server
    for tokens, status in (([TOKEN], b"200"), ([TOKEN, TOKEN], b"401"), (["wrong", TOKEN], b"401")):
        client = open_port(ports["metrics"])
        client.settimeout(10)
        sent = "".join(f"Authorization: Bearer {token}\r\n" for token in tokens)
        client.sendall(f"GET /metrics HTTP/1.1\r\nHost: x\r\n{sent}\r\n".encode())
        assert client.recv(100).split()[1] == status


def test_a_wide_message_of_one_client_lets_another_in_between(server):
    """One client with 64 robots in each message, and one with a single robot: nobody waits for all of the other's."""
    _, ports = server
    wide, single = GrootClient(ports["groot"], token=TOKEN), connect(ports, api_key=TOKEN)
    many = {"observation": {"state": {"joints": np.zeros((64, 1, 3), np.float32)}}, "options": None}
    replies = in_threads(
        [
            lambda: [wide.call("get_action", many) for _ in range(5)],
            lambda: [single.infer({STATE: state(1)}) for _ in range(20)],
        ]
    )
    assert all(reply[0]["action"].shape == (64, 6, 2) for reply in replies[0])
    assert len(replies[1]) == 20
    single._ws.close()
    wide.socket.close()
