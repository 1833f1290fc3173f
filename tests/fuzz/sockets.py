"""What is sent to the ports of a server, byte by byte: each connection ends, and honest robots get their actions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from typing import Any

import msgpack
import numpy as np
from websockets.asyncio.client import connect

from fuzz import messages
from keystone_robotics.serve.protocols.arrays import pack_openpi, unpack
from keystone_robotics.serve.server import open_ports
from keystone_robotics.serve.service import Guard, Service

#: Connections of a case: as many to each port.
CONNECTIONS = 4
PROTOCOLS = ("openpi", "roboarena", "starvla", "groot", "lerobot")


@functools.cache
def _server() -> tuple[asyncio.AbstractEventLoop, Service, dict[str, int], list[Any]]:
    """Open ports before the policy of `messages`, and the chunks that the honest robots are to get."""
    loop, other, expected = messages._server()
    service = Service(other.model, Guard(max_connections=100, max_message=100_000))
    listeners = loop.run_until_complete(open_ports(service, "127.0.0.1", dict.fromkeys(PROTOCOLS, 0)))
    return loop, service, {name: one.port for name, one in listeners.items()}, expected


def _frame(data: bytes, opcode: int = 2) -> bytes:
    """Of a WebSocket, from a client."""
    return bytes([0x80 | opcode, 0x80 | 126]) + len(data).to_bytes(2, "big") + bytes(4) + data


def _h2(kind: int, data: bytes, flags: int = 0, stream: int = 0) -> bytes:
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data


def _call(stream: int, name: str, message: bytes) -> bytes:
    """Of gRPC, over HTTP/2."""
    headers = {
        ":method": "POST", ":scheme": "http", ":path": f"/transport.AsyncInference/{name}", ":authority": "x",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    coded = b"".join(b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in headers.items())
    return _h2(1, coded, 4, stream) + _h2(0, b"\0" + len(message).to_bytes(4, "big") + message, 1, stream)


@functools.cache
def _good(protocol: str) -> bytes:
    """All that a client sends which asks once."""
    state = np.ones(3, np.float32)
    if protocol == "groot":
        ready = b"\x05READY\x0bSocket-Type" + (3).to_bytes(4, "big") + b"REQ"
        request = {"endpoint": "get_action", "data": {"observation": {"state": {"joints": {}}}, "options": None}}
        array = {b"nd": True, b"type": b"<f4", b"kind": b"", b"shape": (1, 1, 3), b"data": state.tobytes()}
        request["data"]["observation"]["state"]["joints"] = array  # type: ignore[index]
        body = msgpack.packb(request)
        greeting = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        return greeting + bytes([4, len(ready)]) + ready + b"\x01\0" + bytes([2]) + len(body).to_bytes(8, "big") + body
    if protocol == "lerobot":
        from lerobot.transport import services_pb2

        setup = services_pb2.PolicySetup(data=messages._instructions()).SerializeToString()
        last = services_pb2.TransferState.TRANSFER_END
        part = services_pb2.Observation(transfer_state=last, data=messages._observation()).SerializeToString()
        calls = (("Ready", b""), ("SendPolicyInstructions", setup), ("SendObservations", part), ("GetActions", b""))
        sent = b"".join(_call(2 * number + 1, *call) for number, call in enumerate(calls))
        return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _h2(4, b"") + sent
    request = {
        "openpi": {messages.STATE: state, "prompt": "push"},
        "roboarena": {"endpoint": "infer", messages.STATE: state, "session_id": "a"},
        "starvla": {"type": "infer", "request_id": "1", "payload": {"examples": [{"image": [], "state": state[None]}]}},
    }[protocol]
    upgrade = (
        "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    return upgrade.encode() + _frame(pack_openpi(request)) + _frame(b"ping", 9) + _frame(b"\x03\xe8", 8)


def _pieces(data: bytes, rng: np.random.Generator) -> list[bytes]:
    cuts = sorted(int(cut) for cut in rng.integers(0, len(data) + 1, rng.integers(0, 4)))
    return [data[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(data)])]


async def _strange(port: int, pieces: list[bytes], reset: bool) -> None:
    """Send bytes, and no more; the server is to end the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        for one in pieces:
            writer.write(one)
            await writer.drain()
        if reset:
            writer.transport.abort()
        else:
            writer.write_eof()
        await asyncio.wait_for(reader.read(), 60)
    writer.close()


async def _honest(port: int, number: int) -> Any:
    async with connect(f"ws://127.0.0.1:{port}", compression=None) as connection:
        await connection.recv()
        await connection.send(pack_openpi({messages.STATE: np.full(3, number, np.float32), "keystone_seed": number}))
        return unpack(await connection.recv())["actions"]


def attack_sockets(rng: np.random.Generator) -> int:
    """Bytes of whole conversations changed, on every port."""
    loop, service, ports, expected = _server()
    sent = [
        (ports[name], _pieces(messages._mutated(_good(name), rng), rng), rng.random() < 0.1)
        for name in PROTOCOLS
        for _ in range(CONNECTIONS)
    ]

    async def all_at_once() -> list[Any]:
        strangers = asyncio.gather(*(_strange(*one) for one in sent))
        robots = await asyncio.gather(*(_honest(ports["openpi"], number) for number in range(messages.HONEST)))
        await strangers
        while service.connections or service.acting:
            await asyncio.sleep(0.005)
        return robots

    replies = loop.run_until_complete(asyncio.wait_for(all_at_once(), 120))
    for actions, chunk in zip(replies, expected, strict=True):
        np.testing.assert_allclose(actions, chunk, atol=1e-4, err_msg="a wrong reply to an honest robot")
    return len(sent)
