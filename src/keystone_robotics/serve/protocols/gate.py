"""The port before a server that cannot tell strangers from robots: gRPC's, which listens in a folder of this user's. Bytes pass
through here, so that strangers can be counted and closed, and it is noticed when a client goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from keystone_robotics.serve.messages import Refused
from keystone_robotics.serve.protocols.unfinished import Unfinished
from keystone_robotics.serve.service import Client, Service

#: Bytes that are passed at a time.
PART = 2**18


@dataclass
class _Passage:
    """A connection: a stranger's until a call on it has shown the token."""

    transport: asyncio.WriteTransport
    client: Client | None = None
    leaving: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


class Gate:
    """An open port before a server on a socket of this machine.

    Attributes:
        inner: where that server is to listen.
        port: that is open.

    Args:
        service: whose limits hold.
        protocol: of the server.
    """

    def __init__(self, service: Service, protocol: str) -> None:
        guard = service.guard
        self._service, self._protocol = service, protocol
        self._folder = tempfile.TemporaryDirectory(prefix="keystone-")  # for this user alone
        self.inner = f"{self._folder.name}/server"
        self._server: asyncio.Server | None = None
        self._strangers = Unfinished(2 * guard.max_connections, guard.read_timeout)
        self._passages: dict[str, _Passage] = {}
        self._numbers = itertools.count()
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        """Open the port."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=PART)
        self.port = self._server.sockets[0].getsockname()[1]

    def admit(self, peer: str) -> Client:
        """The client of a call that has shown the token, by what the server calls its connection.

        Raises:
            Refused: if there are too many clients.
        """
        passage = self._passages.get(peer.rpartition("/")[2])  # gRPC percent-encodes the folder before it
        if passage is None:
            raise Refused("message", "the connection is closed")
        if passage.client is None:
            passage.client = passage.leaving.enter_context(self._service.connected(self._protocol))
            self._strangers.end(passage.transport)
        return passage.client

    async def close(self) -> None:
        """Stop to listen and close all connections; what the server has written is sent, within 1 s."""
        if self._server is not None:
            self._server.close()
        if self._open:
            await asyncio.wait(self._open, timeout=1)
        for one in self._open:
            one.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=1)
        self._folder.cleanup()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        name = str(next(self._numbers))
        passage = self._passages[name] = _Passage(writer.transport)
        self._strangers.grow(writer.transport, 1)
        with contextlib.ExitStack() as ending:
            ending.callback(self._open.discard, task)
            ending.callback(writer.close)
            ending.callback(self._strangers.end, writer.transport)
            ending.callback(self._passages.pop, name)
            ending.enter_context(passage.leaving)
            with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.CancelledError):
                inner = await self._connect(name)
                ending.callback(inner[1].close)
                await self._pass_both_ways((reader, writer), inner)

    async def _connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the server, which tells it from others by its name."""
        inner = socket.socket(socket.AF_UNIX)
        inner.setblocking(False)
        path = Path(self._folder.name, name)
        inner.bind(str(path))
        path.unlink()
        await asyncio.get_running_loop().sock_connect(inner, self.inner)
        return await asyncio.open_connection(sock=inner, limit=PART)

    async def _pass_both_ways(
        self,
        outer: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        inner: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Until one of the two ends."""
        ways = [
            asyncio.ensure_future(self._pass(outer[0], inner[1])),
            asyncio.ensure_future(self._pass(inner[0], outer[1])),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in ways:
                one.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(PART):
            writer.write(part)
            await asyncio.wait_for(writer.drain(), self._service.guard.read_timeout)  # or it does not read
