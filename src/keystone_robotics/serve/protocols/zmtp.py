"""The ZeroMQ server under GR00T's protocol: as much of ZMTP 3 (https://rfc.zeromq.org/spec/23) as REQ clients need.

libzmq's own sockets limit neither the parts of a message, nor the time that one takes, nor the number of connections: whoever
reaches the port, with a token or without, takes any amount of memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Protocol

from keystone_robotics.serve.messages import Refused
from keystone_robotics.serve.protocols.decoding import decode
from keystone_robotics.serve.protocols.unfinished import Unfinished
from keystone_robotics.serve.service import Client, Service

log = logging.getLogger("keystone.serve")

MORE, LONG, COMMAND = 1, 2, 4
#: Signature, version 3.0, mechanism NULL, not a server of a mechanism.
GREETING = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY" + b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"ROUTER"
PING, PONG = b"\x04PING", b"\x04PONG"
#: Bytes of a command: a handshake has two short properties, a ping a few bytes.
LONGEST_COMMAND = 1000
#: Bytes that are read at a time.
PART = 2**18


class Ended(Exception):
    """The connection is to be closed: it is broken, too slow, or not one of a REQ socket."""


class Conversation(Protocol):
    """What a protocol on ZeroMQ defines."""

    def read(self, service: Service, message: bytes) -> Any:
        """The content of a message; `Refused` without the token."""

    async def answer(self, service: Service, client: Client, request: Any) -> bytes:
        """The reply to it."""

    def refuse(self, refusal: Refused) -> bytes:
        """The reply that says why there is none."""


class ZmtpListener:
    """An open port."""

    def __init__(self, service: Service, name: str, protocol: Conversation) -> None:
        guard = service.guard
        self._service, self._name, self._protocol = service, name, protocol
        # Strangers, whose first message is still to come or had no token, and messages that are not complete.
        self._strangers = Unfinished(2 * guard.max_connections, guard.idle_timeout)
        self._messages = Unfinished(4 * guard.max_message, guard.read_timeout)
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        """Open the port."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=PART)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop to listen and close all connections; replies that were written are sent."""
        self._server.close()
        for one in self._open:
            one.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=1)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self._strangers.grow(writer.transport, 1)
        try:
            await self._converse(reader, writer)
        except (Ended, OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # the client, or the server, is about to go
        finally:
            self._strangers.end(writer.transport)
            self._messages.end(writer.transport)
            self._open.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        service, guard = self._service, self._service.guard
        self._messages.grow(writer.transport, 1)
        writer.write(GREETING + _frame(COMMAND, READY))
        greeting = await reader.readexactly(len(GREETING))
        if greeting[0] != 0xFF or greeting[10] < 3 or not greeting[12:].startswith(b"NULL\0"):
            raise Ended
        incoming = asyncio.ensure_future(self._message(reader, writer))
        with contextlib.ExitStack() as connection:
            connection.callback(lambda: incoming.cancel())
            client: Client | None = None
            while True:
                message = await asyncio.wait_for(incoming, guard.idle_timeout)
                incoming = asyncio.ensure_future(self._message(reader, writer))
                try:
                    request = await decode(lambda data: self._protocol.read(service, data), message)
                    if client is None:
                        client = connection.enter_context(service.connected(self._name))
                        self._strangers.end(writer.transport)
                except Refused as refusal:
                    service.metrics.refused.labels(refusal.reason).inc()
                    reply = self._protocol.refuse(refusal)
                else:
                    reply = await self._answer(client, request, incoming)
                writer.write(_frame(MORE, b"") + _frame(0, reply))
                await asyncio.wait_for(writer.drain(), guard.read_timeout)

    async def _answer(self, client: Client, request: Any, incoming: asyncio.Future[bytes]) -> bytes:
        """The reply; cancelled when the client goes away, so that nothing is computed for nobody."""
        answering = asyncio.ensure_future(self._protocol.answer(self._service, client, request))
        try:
            # A REQ socket sends nothing but pings before it has the reply.
            await asyncio.wait((answering, incoming), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise Ended
            return await answering
        except Refused as error:
            refusal = error
        except Ended:
            raise
        except Exception as error:
            log.exception("%s: a request failed", self._name)
            refusal = Refused("model", f"the server failed: {type(error).__name__}")
        finally:
            answering.cancel()
        self._service.count_refused(client, refusal)
        return self._protocol.refuse(refusal)

    async def _message(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """The next message of a REQ socket: an empty part, and one with the content. Commands before it are answered."""
        delimited = False
        while True:
            flags, body = await self._read_frame(reader, writer.transport, delimited)
            if flags & COMMAND:
                if body.startswith(PING):
                    writer.write(_frame(COMMAND, PONG + body[len(PING) + 2 :]))  # after the time to live
                    await writer.drain()  # a client that does not read is not read
            elif not delimited and flags & MORE and not body:
                delimited = True
            elif delimited and not flags & MORE:
                return body
            else:
                raise Ended
            if not delimited:
                self._messages.end(writer.transport)

    async def _read_frame(
        self, reader: asyncio.StreamReader, transport: asyncio.WriteTransport, delimited: bool
    ) -> tuple[int, bytes]:
        (flags,) = await reader.readexactly(1)
        self._messages.grow(transport, 1)
        size = int.from_bytes(await reader.readexactly(8 if flags & LONG else 1), "big")
        most = LONGEST_COMMAND if flags & COMMAND else self._service.guard.max_message if delimited else 0
        if size > most:
            raise Ended
        body = bytearray()
        while len(body) < size:
            part = await reader.read(min(size - len(body), PART))
            if not part:
                raise Ended
            body += part
            self._messages.grow(transport, len(part))
        if delimited and not flags & COMMAND:
            self._messages.end(transport)
        return flags, bytes(body)


def _frame(flags: int, body: bytes) -> bytes:
    r"""A part of a message, or a command.

    >>> _frame(MORE, b""), _frame(COMMAND, b"\x04PONG")
    (b'\x01\x00', b'\x04\x05\x04PONG')
    """
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | LONG]) + len(body).to_bytes(8, "big") + body
