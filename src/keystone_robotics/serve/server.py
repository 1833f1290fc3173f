"""The front end: opens ports, waits for a signal, drains. The event loop never waits for the model."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve.address import Tls
from keystone_robotics.serve.service import Service

log = logging.getLogger("keystone.serve")

_ON_WEBSOCKETS = ("openpi", "roboarena", "starvla")
#: Seconds in which requests that wait are answered after SIGTERM.
DRAIN = 10.0
#: Seconds to send the last replies.
SEND = 0.1


class Listener(Protocol):
    """An open port of a protocol."""

    port: int

    async def close(self) -> None:
        """Stop to listen and close all connections."""


async def open_ports(
    service: Service, host: str, ports: Mapping[str, int], tls: Tls | None = None, metrics_port: int | None = None
) -> dict[str, Listener]:
    """Listen; returns what is open, by protocol, and "metrics" for a port of its own."""
    listeners: dict[str, Listener] = {}
    try:
        for name, port in ports.items():
            module: Any = importlib.import_module(f"keystone_robotics.serve.protocols.{name}")
            if name in _ON_WEBSOCKETS:
                from keystone_robotics.serve.protocols.websocket import listen

                listeners[name] = await listen(service, host, port, tls, name, module)
            else:
                listeners[name] = await module.listen(service, host, port, tls)
        if metrics_port is not None:
            from keystone_robotics.serve.protocols.websocket import listen

            listeners["metrics"] = await listen(service, host, metrics_port, tls, "metrics", None)
    except OSError as error:
        await _close(listeners)
        raise KeystoneError(f"cannot serve on {host}: {error}") from None
    except BaseException:
        await _close(listeners)
        raise
    return listeners


async def _close(listeners: Mapping[str, Listener]) -> None:
    await asyncio.gather(*(one.close() for one in listeners.values()))


async def serve(
    service: Service,
    host: str,
    ports: Mapping[str, int],
    tls: Tls | None = None,
    metrics_port: int | None = None,
    on_ready: Callable[[dict[str, int]], None] = lambda ports: None,
    stop: asyncio.Event | None = None,
    drain: float = DRAIN,
) -> None:
    """Serve until SIGTERM, SIGINT or ``stop``; then answer what waits, and end.

    Args:
        service: with a model that is warm.
        host: address to listen on.
        ports: by protocol; 0 for any.
        tls: see `address.make_tls`.
        metrics_port: a further port for ``/healthz``, ``/readyz`` and ``/metrics``, which the WebSocket ports have too.
        on_ready: is called with the ports once they are open.
        stop: ends the server when set.
        drain: seconds for what waits.
    """
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
    service.model.start()
    listeners: dict[str, Listener] = {}
    try:
        listeners = await open_ports(service, host, ports, tls, metrics_port)
        on_ready({name: one.port for name, one in listeners.items()})
        await stop.wait()
        log.info("draining: %d requests wait", service.model.waiting)
    finally:
        service.draining = True
        await loop.run_in_executor(None, service.model.stop, drain)
        while service.acting:  # the model has answered or refused all: their protocols take the replies
            await asyncio.sleep(0.01)
        await asyncio.sleep(SEND)
        await _close(listeners)


@contextlib.contextmanager
def running(
    service: Service, ports: Mapping[str, int], host: str = "127.0.0.1", **more: Any
) -> Iterator[dict[str, int]]:
    """A server in a thread of this process for the time of the block; gives the ports. For tests and notebooks."""
    ready, found, failed = threading.Event(), {}, []
    control: dict[str, Any] = {}

    async def run() -> None:
        control["loop"], control["stop"] = asyncio.get_running_loop(), asyncio.Event()

        def on_ready(ports: dict[str, int]) -> None:
            found.update(ports)
            ready.set()

        await serve(service, host, ports, on_ready=on_ready, stop=control["stop"], **more)

    def target() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=target, name="keystone-serve")
    thread.start()
    ready.wait()
    try:
        if failed:
            raise failed[0]
        yield found
    finally:
        if not failed:
            with contextlib.suppress(RuntimeError):
                control["loop"].call_soon_threadsafe(control["stop"].set)
        thread.join()
