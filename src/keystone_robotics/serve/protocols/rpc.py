"""The gRPC server under LeRobot's protocol: tokens, limits and time-outs of its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import grpc

from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve.address import Tls
from keystone_robotics.serve.messages import Refused
from keystone_robotics.serve.protocols.gate import Gate
from keystone_robotics.serve.service import Client, Service


class PartPlace(NamedTuple):
    """Of a part in its message: a first one drops what came before it, a last one completes it."""

    first: bool
    last: bool


class Method(NamedTuple):
    """One of a protocol's methods.

    Attributes:
        request: class of the parts that a client sends.
        reply: class of the answer.
        answer: the reply to a client's message, and metadata that are sent after it. Raises `CallFailed` or `Refused`.
        place: of a part, which has ``data``; None if the message has no content, and is not waited for.
    """

    request: Any
    reply: Any
    answer: Callable[[Client, bytes], Awaitable[tuple[Any, Mapping[str, str]]]]
    place: Callable[[Any], PartPlace] | None = None


class CallFailed(Exception):
    """A call ends with this status and these words.

    Attributes:
        status: INVALID_ARGUMENT, FAILED_PRECONDITION, or ABORTED; LeRobot's client answers UNAVAILABLE and DEADLINE_EXCEEDED
            with four retries.
    """

    def __init__(self, status: str, words: str) -> None:
        super().__init__(words)
        self.status = status


class Handlers:
    """Of a protocol's methods. All take a stream of parts, also those whose client sends one message: gRPC would wait for that
    one for ever, and before the token is checked.
    """

    def __init__(self, service: Service, gate: Gate) -> None:
        self._service, self._gate = service, gate
        self._receiving = 0  # bytes of all streams that have not ended

    def handler(self, method: Method) -> Any:
        """A method as gRPC takes it."""

        async def handle(parts: AsyncIterator[Any], context: Any) -> Any:
            try:
                reply, metadata = await self._answer(method, parts, context)
            except CallFailed as failure:
                status, words = failure.status, str(failure)
            except Refused as refusal:
                self._service.metrics.refused.labels(refusal.reason).inc()
                status, words = "UNAUTHENTICATED" if refusal.reason == "token" else "RESOURCE_EXHAUSTED", str(refusal)
            else:
                context.set_trailing_metadata(tuple(metadata.items()))
                return reply
            await context.abort(grpc.StatusCode[status], words)
            raise AssertionError("abort raises")

        return grpc.stream_unary_rpc_method_handler(handle, method.request.FromString, method.reply.SerializeToString)

    async def _answer(self, method: Method, parts: AsyncIterator[Any], context: Any) -> tuple[Any, Mapping[str, str]]:
        if not self._service.guard.admits_header(_header(context)):
            raise Refused("token", "expected the server's token in the metadata: authorization: Bearer TOKEN")
        client = self._gate.admit(context.peer())
        return await method.answer(client, b"" if method.place is None else await self._receive(parts, method.place))

    async def _receive(self, parts: AsyncIterator[Any], place: Callable[[Any], PartPlace]) -> bytes:
        """The bytes of a message."""
        guard = self._service.guard
        received = bytearray()

        async def read() -> bool:
            async for part in parts:
                first, last = place(part)
                if first:
                    self._receiving -= len(received)
                    received.clear()
                received.extend(part.data)
                self._receiving += len(part.data)
                if len(received) > guard.max_message:
                    raise Refused(
                        "message", f"the message is larger than {guard.max_message / 1e6:g} MB (--max-message-mb)"
                    )
                if self._receiving > 4 * guard.max_message:
                    raise Refused(
                        "full", f"all clients together are sending more than {4 * guard.max_message / 1e6:g} MB"
                    )
                if last:
                    return True
            return False

        try:
            if await asyncio.wait_for(read(), guard.read_timeout):
                return bytes(received)
        except asyncio.TimeoutError:
            raise CallFailed("ABORTED", f"the message was not complete after {guard.read_timeout:g} s") from None
        finally:
            self._receiving -= len(received)
        raise CallFailed("INVALID_ARGUMENT", "the stream ended before the message was complete")


def _header(context: Any) -> str | None:
    found = [value for name, value in context.invocation_metadata() if name == "authorization"]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None


class GrpcListener:
    """An open port."""

    def __init__(self, server: Any, gate: Gate) -> None:
        self._server, self._gate, self.port = server, gate, gate.port

    async def close(self) -> None:
        """Stop to listen and close all connections."""
        await self._server.stop(grace=1)
        await self._gate.close()


async def listen(
    service: Service, host: str, port: int, tls: Tls | None, name: str, path: str, methods: Mapping[str, Method]
) -> GrpcListener:
    """Open a port for the methods of a gRPC service."""
    gate = Gate(service, name)
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", 4 * 2**20),  # of one part of a stream; clients send 2 MB
            ("grpc.max_connection_idle_ms", int(1000 * service.guard.idle_timeout)),
            ("grpc.keepalive_time_ms", 20_000),
            # Also between two calls, or a robot that vanishes there stays until it has been idle for too long.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.ping_timeout_ms", 20_000),  # what counts in gRPC 1.85, not keepalive_timeout_ms
            ("grpc.max_concurrent_streams", 16),
        ],
    )
    handlers = Handlers(service, gate)
    by_name = {method: handlers.handler(one) for method, one in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(path, by_name),))
    try:
        _bind(server, gate.inner, tls)
        await server.start()
        await gate.listen(host, port)
    except BaseException:
        await server.stop(grace=None)
        await gate.close()
        raise
    return GrpcListener(server, gate)


def _bind(server: Any, path: str, tls: Tls | None) -> None:
    address = f"unix:{quote(path)}"
    try:
        if tls is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, grpc.ssl_server_credentials([(tls.key, tls.cert)]))
    except RuntimeError as error:
        words = str(error).partition(";")[0]  # what follows is about the environment variables of gRPC
        raise KeystoneError(f"cannot listen in {path}: {words}; set TMPDIR to a shorter path") from None
