"""GR00T's ZeroMQ protocol, N1.5 to N1.7: one MessagePack message each way, ``{endpoint, data, api_token}``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import zmq
import zmq.asyncio

from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve.address import Tls
from keystone_robotics.serve.messages import Refused, Reply, take_options
from keystone_robotics.serve.protocols.arrays import pack_groot, peek, unpack
from keystone_robotics.serve.service import Client, KnownClients, Service

log = logging.getLogger("keystone.serve")


class GrootListener:
    """A ROUTER socket: REQ clients, any number, each with a request at a time."""

    def __init__(self, service: Service, host: str, port: int) -> None:
        self._service = service
        self._clients = KnownClients(service, "groot")
        self._context = zmq.asyncio.Context()
        self._socket = socket = self._context.socket(zmq.ROUTER)
        seconds = {
            zmq.HANDSHAKE_IVL: service.guard.read_timeout,
            zmq.HEARTBEAT_IVL: 20,
            zmq.HEARTBEAT_TIMEOUT: 20,
            zmq.LINGER: 1,
        }
        for option, value in seconds.items():
            socket.setsockopt(option, int(1000 * value))
        socket.setsockopt(zmq.MAXMSGSIZE, service.guard.max_message)
        socket.setsockopt(zmq.RCVHWM, 2)  # of each client; they wait for a reply anyway
        socket.setsockopt(zmq.IPV6, ":" in host)
        address = "127.0.0.1" if host == "localhost" else f"[{host}]" if ":" in host else host
        try:
            self.port: int = (
                socket.bind_to_random_port(f"tcp://{address}")
                if port == 0
                else _bind(socket, f"tcp://{address}:{port}")
            )
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise KeystoneError(f"cannot serve on {host}:{port}: {error}") from None
        self._tasks: set[asyncio.Task[None]] = set()
        self._receiving = asyncio.ensure_future(self._receive())

    async def close(self) -> None:
        """Stop to listen; replies that are computed already are sent."""
        self._receiving.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
        self._context.destroy(linger=1000)

    async def _receive(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            if len(frames) != 3 or frames[1]:
                continue  # not from a REQ socket: there is nobody to answer
            task = asyncio.ensure_future(self._answer(frames[0], frames[2]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, identity: bytes, message: bytes) -> None:
        try:
            request = _request(self._service, message)
            client = self._clients[identity]  # only now: strangers must not displace the clients that are known
            with self._service.using(client):
                reply = pack_groot(await _reply(self._service, client, request))
        except Refused as refusal:
            reply = pack_groot({"error": str(refusal)})
        except Exception as error:
            log.exception("groot: a request failed")
            reply = pack_groot({"error": f"the server failed: {type(error).__name__}"})
        await self._socket.send_multipart([identity, b"", reply])


def _bind(socket: Any, address: str) -> int:
    socket.bind(address)
    return int(address.rpartition(":")[2])


async def listen(service: Service, host: str, port: int, tls: Tls | None) -> GrootListener:
    """Open a port."""
    return GrootListener(service, host, port)


def _request(service: Service, message: bytes) -> dict[Any, Any]:
    """The content of a message; nothing is built of one without the token."""
    if service.guard.token is not None and not service.guard.admits(peek(message, "api_token")):
        raise Refused("token", "Unauthorized: expected the server's token in api_token")
    request = unpack(message)
    if not isinstance(request, dict):
        raise Refused("message", f"the message is a {type(request).__name__}: expected a dict with endpoint and data")
    return request


async def _reply(service: Service, client: Client, request: dict[Any, Any]) -> Any:
    endpoint, data = request.get("endpoint", "get_action"), request.get("data")
    data = data if isinstance(data, dict) else {}
    if endpoint == "ping":
        return {"status": "ok", "message": "Server is running"}
    if endpoint == "reset":
        service.reset(client, _options(data))
        return {}
    if endpoint == "get_modality_config":
        return _modality_config(service)
    if endpoint == "get_action":
        return await _get_action(service, client, data)
    raise Refused(
        "message", f"endpoint {str(endpoint)[:50]!a}: expected get_action, reset, ping or get_modality_config; stop the server "
        "with SIGTERM"
    )  # fmt: skip


def _options(data: dict[str, Any]) -> dict[str, Any]:
    options = data.get("options")
    if options is not None and not isinstance(options, dict):
        raise Refused("message", f"options is a {type(options).__name__}: expected a dict")
    return dict(options or {})


async def _get_action(service: Service, client: Client, data: dict[str, Any]) -> Any:
    new = "observation" in data  # since N1.6
    options = take_options(_options(data) if new else data)
    if not service.model.served.inputs:  # GR00T's own policy
        return _own(await service.act(client, data, **options))
    observation = data["observation"] if new else data
    observations, tasks, batched = _robots(service, observation)
    replies = await service.act_for_all(client, observations, tasks, **options)
    actions = np.stack([one.actions for one in replies])
    if new:
        return [{"action": actions}, {"keystone": [one.report for one in replies]}]
    return {"action.action": actions if batched else actions[0]}


def _own(reply: Reply) -> Any:
    if isinstance(reply.own, tuple) and len(reply.own) == 2 and isinstance(reply.own[1], Mapping):
        return [reply.own[0], {**reply.own[1], "keystone": [reply.report]}]
    return reply.own


def _robots(service: Service, observation: Any) -> tuple[list[dict[str, Any]], list[str], bool]:
    """One observation for each robot of a batch, the newest in time; their tasks; and whether there was a batch.

    Nested (``{"video": {"top": (B, T, H, W, 3)}, "state": …, "language": …}``) or flat (``"video.top"``), with or without B.
    """
    if not isinstance(observation, dict):
        raise Refused(
            "observation", f"the observation is a {type(observation).__name__}: expected video, state and language"
        )
    parts: dict[str, dict[str, Any]] = {"video": {}, "state": {}}
    texts: list[Any] = []
    for key, value in observation.items():
        kind, _, name = str(key).partition(".")
        if kind in parts:
            parts[kind].update(value if isinstance(value, dict) else {name: value})
        elif kind in ("language", "annotation", "task"):
            texts.append(next(iter(value.values()), "") if isinstance(value, dict) else value)
    arrays = {(kind, name): value for kind, named in parts.items() for name, value in named.items()}
    ranks = {"video": 4, "state": 2}  # without a batch
    if not arrays or not all(isinstance(value, np.ndarray) for value in arrays.values()):
        raise Refused("observation", "the observation has no arrays of video or state")
    batched = all(value.ndim == ranks[kind] + 1 for (kind, _), value in arrays.items())
    rows = {key: value if batched else value[None] for key, value in arrays.items()}
    count = len(next(iter(rows.values())))
    if any(
        value.ndim != ranks[kind] + 1 or len(value) != count or not value.shape[1] for (kind, _), value in rows.items()
    ):
        raise Refused("observation", "the arrays of the observation differ in their numbers of dimensions or of robots")
    names = {name.rpartition(".")[2]: name for name in service.model.served.images}
    observations: list[dict[str, Any]] = []
    for row in range(count):
        one = {names.get(name, name): value[row, -1] for (kind, name), value in rows.items() if kind == "video"}
        states = [value[row, -1] for (kind, _), value in rows.items() if kind == "state"]
        if states and service.model.served.state is not None:
            one[service.model.served.state] = np.concatenate(states)
        observations.append(one)
    return observations, [_text(texts[0] if texts else "", row) for row in range(count)], batched


def _text(value: Any, row: int) -> str:
    """The instruction of a row; clients send text, (B,) or (B, T) of it."""
    while isinstance(value, (list, tuple, np.ndarray)) and len(value):
        value = value[row if row < len(value) else -1]
    return str(value)[:4096]


def _modality_config(service: Service) -> dict[str, Any]:
    served = service.model.served
    own = getattr(served.policy, "get_modality_config", None)
    if own is not None:
        return {name: _config(one.delta_indices, one.modality_keys) for name, one in own().items()}
    keys = {"video": [name.rpartition(".")[2] for name in served.images], "state": ["state"], "language": ["task"]}
    found = {name: _config([0], one) for name, one in keys.items() if one}
    return {**found, "action": _config(range(service.model.horizon or 1), ["action"])}


def _config(indices: Any, keys: Any) -> dict[str, Any]:
    """A ModalityConfig as the clients of N1.6 and N1.7 read it; N1.5's expects text in its place."""
    return {
        "__ModalityConfig_class__": True,
        "as_json": {"delta_indices": list(indices), "modality_keys": list(keys)},
    }
