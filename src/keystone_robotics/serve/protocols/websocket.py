"""The WebSocket server under openpi's, RoboArena's and StarVLA's protocols, with the pages for operators on the same port."""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import DATA_OPCODES, Frame
from websockets.http11 import Request, Response
from websockets.protocol import State

from keystone_robotics.serve.address import Tls
from keystone_robotics.serve.messages import Refused
from keystone_robotics.serve.model import STALLED
from keystone_robotics.serve.protocols.decoding import decode
from keystone_robotics.serve.protocols.unfinished import Unfinished
from keystone_robotics.serve.service import Client, Service

log = logging.getLogger("keystone.serve")


class Conversation(Protocol):
    """What a protocol on WebSockets defines."""

    def greeting(self, service: Service) -> bytes:
        """Sent to each client that has connected."""

    def read(self, service: Service, message: bytes) -> Any:
        """The content of a message; a `Refused` ends the connection."""

    async def answer(self, service: Service, client: Client, request: Any) -> bytes | str:
        """The reply to it; a `Refused` is sent as text."""


class WebSocketListener:
    """An open port."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.port: int = next(iter(server.sockets)).getsockname()[1]

    async def close(self) -> None:
        """Stop to listen and close all connections."""
        self._server.close()
        await self._server.wait_closed()


async def listen(
    service: Service, host: str, port: int, tls: Tls | None, name: str, protocol: Conversation | None
) -> WebSocketListener:
    """Open a port; without a protocol, for operators only."""
    guard = service.guard
    greeting = b"" if protocol is None else protocol.greeting(service)
    handshakes = Unfinished(2 * guard.max_connections, guard.read_timeout)
    messages = Unfinished(4 * guard.max_message, guard.read_timeout)

    class LimitedConnection(ServerConnection):
        in_message = False  # a fragment has come, and not the last one

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            handshakes.grow(transport, 1)

        def data_received(self, data: bytes) -> None:
            if self.state is not State.CONNECTING:
                messages.grow(self.transport, len(data))
            super().data_received(data)

        def process_event(self, event: Any) -> None:
            super().process_event(event)
            if isinstance(event, Frame):
                if event.opcode in DATA_OPCODES:
                    self.in_message = not event.fin
                if not self.in_message:
                    messages.end(self.transport)

        def pause_writing(self) -> None:
            super().pause_writing()
            self.transport.pause_reading()  # a client that does not read, pongs for instance, is not read

        def resume_writing(self) -> None:
            super().resume_writing()
            if not self.recv_messages.paused:  # else its queue is full: websockets resumes when that is read
                self.transport.resume_reading()

        def connection_lost(self, exc: Exception | None) -> None:
            handshakes.end(self.transport)
            messages.end(self.transport)
            super().connection_lost(exc)

    async def answer(client: Client, request: Any) -> bytes | str:
        assert protocol is not None
        try:
            return await protocol.answer(service, client, request)
        except Refused as error:
            refusal = error
        except Exception as error:
            log.exception("%s: a request failed", name)
            refusal = Refused("model", f"the server failed: {type(error).__name__}")
        service.count_refused(client, refusal)
        return str(refusal)

    async def converse(connection: ServerConnection) -> None:
        assert protocol is not None
        handshakes.end(connection.transport)
        with contextlib.suppress(ConnectionClosed):
            try:
                with service.connected(name) as client:
                    await connection.send(greeting)
                    while True:
                        message = await asyncio.wait_for(connection.recv(), guard.idle_timeout)
                        if isinstance(message, str):
                            raise Refused("message", "the message is text: expected bytes, MessagePack")
                        request = await decode(lambda data: protocol.read(service, data), message)
                        reply = await _while_open(connection, answer(client, request))
                        await asyncio.wait_for(connection.send(reply), guard.read_timeout)
            except Refused as refusal:
                service.metrics.refused.labels(refusal.reason).inc()
                await connection.send(str(refusal))
                await connection.close(1008, "refused; the reason is in the previous message")
            except asyncio.TimeoutError:
                await connection.close(1008, f"no message for {guard.idle_timeout:g} s, or a reply was not read")

    def on_request(connection: ServerConnection, request: Request) -> Response | None:
        if connection.protocol.eof_sent:  # more than a request has come, and no frames: websockets cannot respond then
            connection.protocol.state = State.CLOSED  # websockets 17 then does not try; 14 to 16 do, and log an error
            return None
        page = _page(service, connection, request)
        if page is not None:
            return page
        if not guard.admits_header(_authorization(request)):
            service.metrics.refused.labels("token").inc()
            text = "expected the server's token: Authorization: Api-Key TOKEN\n"
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, text)
        if protocol is None:
            return connection.respond(http.HTTPStatus.NOT_FOUND, "expected /healthz, /readyz or /metrics\n")
        refusal = service.refuse_connection()
        if refusal is not None:
            service.metrics.refused.labels(refusal.reason).inc()
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{refusal}\n")
        return None

    server = await serve(
        converse, host, port, ssl=None if tls is None else tls.context,
        ssl_handshake_timeout=None if tls is None else guard.read_timeout,
        process_request=on_request, create_connection=LimitedConnection,
        origins=[None],  # programs send no Origin, web pages always do
        compression=None, max_size=guard.max_message, max_queue=1, open_timeout=guard.read_timeout,
        ping_interval=20, ping_timeout=20, close_timeout=2, logger=logging.getLogger("keystone.serve.websocket"),
    )  # fmt: skip
    return WebSocketListener(server)


async def _while_open(connection: ServerConnection, answer: Awaitable[bytes | str]) -> bytes | str:
    """The answer; cancelled when the client goes away, so that nothing is computed for nobody."""
    answering = asyncio.ensure_future(answer)
    closed = asyncio.ensure_future(connection.wait_closed())
    try:
        await asyncio.wait((answering, closed), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answering
            await connection.recv()  # raises ConnectionClosed
        return await answering
    finally:
        closed.cancel()


def _page(service: Service, connection: ServerConnection, request: Request) -> Response | None:
    """The pages for operators; None if this is none of them."""
    path = request.path.partition("?")[0]
    pages: dict[str, Callable[[], tuple[http.HTTPStatus, str]]] = {
        "/healthz": lambda: (http.HTTPStatus.OK, "OK\n"),
        "/readyz": lambda: _ready(service),
        "/metrics": lambda: _metrics(service, request),
    }
    if path not in pages:
        return None
    return connection.respond(*pages[path]())


def _authorization(request: Request) -> str | None:
    """The header; None if there are several, of which another program might read another one."""
    found = request.headers.get_all("Authorization")
    return found[0] if len(found) == 1 else None


def _ready(service: Service) -> tuple[http.HTTPStatus, str]:
    """Whether a load balancer should send robots here: one that has no room for more still serves those that it has."""
    if service.draining:
        return http.HTTPStatus.SERVICE_UNAVAILABLE, "the server is shutting down\n"
    if service.model.stalled:
        return http.HTTPStatus.SERVICE_UNAVAILABLE, f"a round has not ended for more than {STALLED:g} s\n"
    return http.HTTPStatus.OK, "ready\n"


def _metrics(service: Service, request: Request) -> tuple[http.HTTPStatus, str]:
    if not service.guard.admits_header(_authorization(request)):
        return http.HTTPStatus.UNAUTHORIZED, "expected the server's token: Authorization: Bearer TOKEN\n"
    text = service.metrics.render()
    if text is None:
        return http.HTTPStatus.NOT_IMPLEMENTED, 'pip install "keystone-robotics[serve]" for metrics\n'
    return http.HTTPStatus.OK, text.decode()
