"""GR00T's ZeroMQ protocol, N1.5 to N1.7: one MessagePack message each way, ``{endpoint, data, api_token}``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from keystone_robotics.serve.address import Tls
from keystone_robotics.serve.messages import Refused, Reply, take_options
from keystone_robotics.serve.protocols.arrays import pack_groot, peek, unpack_dict
from keystone_robotics.serve.protocols.zmtp import ZmtpListener
from keystone_robotics.serve.service import Client, Service


async def listen(service: Service, host: str, port: int, tls: Tls | None) -> ZmtpListener:
    """Open a port."""
    listener = ZmtpListener(service, "groot", sys.modules[__name__])
    await listener.listen(host, port)
    return listener


def refuse(refusal: Refused) -> bytes:
    """Words that the clients raise as an error."""
    return pack_groot({"error": str(refusal)})


async def answer(service: Service, client: Client, request: dict[Any, Any]) -> bytes:
    """The reply to a request."""
    return pack_groot(await _reply(service, client, request))


def read(service: Service, message: bytes) -> dict[Any, Any]:
    """The content of a message; nothing is built of one without the token."""
    if service.guard.token is not None and not service.guard.admits(peek(message, "api_token")):
        raise Refused("token", "Unauthorized: expected the server's token in api_token")
    return unpack_dict(message, "a dict with endpoint and data")


async def _reply(service: Service, client: Client, request: dict[Any, Any]) -> Any:
    endpoint, data = request.get("endpoint", "get_action"), request.get("data")
    data = data if isinstance(data, dict) else {}
    endpoint = endpoint if isinstance(endpoint, str) else type(endpoint).__name__  # an array is equal to no text
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
        "message", f"endpoint {endpoint[:50]!a}: expected get_action, reset, ping or get_modality_config; stop the server "
        "with SIGTERM"
    )  # fmt: skip


def _options(data: dict[str, Any]) -> dict[str, Any]:
    options = data.get("options")
    if options is not None and not isinstance(options, dict):
        raise Refused("message", f"options is a {type(options).__name__}: expected a dict")
    return dict(options or {})


async def _get_action(service: Service, client: Client, data: dict[str, Any]) -> Any:
    new = "observation" in data  # since N1.6
    chosen = _options(data) if new else data
    options = take_options(chosen)
    if new and data.get("options") is not None:
        data["options"] = chosen  # the policy gets its own alone
    if not service.model.interface.inputs:  # GR00T's own policy
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
    names = {name.rpartition(".")[2]: name for name in service.model.interface.images}
    observations: list[dict[str, Any]] = []
    for row in range(count):
        one = {names.get(name, name): value[row, -1] for (kind, name), value in rows.items() if kind == "video"}
        states = [value[row, -1] for (kind, _), value in rows.items() if kind == "state"]
        if states and service.model.interface.state is not None:
            one[service.model.interface.state] = np.concatenate(states)
        observations.append(one)
    return observations, [_text(texts[0] if texts else "", row) for row in range(count)], batched


def _text(value: Any, row: int) -> str:
    """The instruction of a row; clients send text, (B,) or (B, T) of it."""
    while isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        if not len(value):
            break
        value = value[row if row < len(value) else -1]
    return str(value)[:4096]


def _modality_config(service: Service) -> dict[str, Any]:
    interface = service.model.interface
    if interface.modality_config:
        return {name: _config(*one) for name, one in interface.modality_config.items()}
    keys = {"video": [name.rpartition(".")[2] for name in interface.images], "state": ["state"], "language": ["task"]}
    found = {name: _config([0], one) for name, one in keys.items() if one}
    return {**found, "action": _config(range(service.model.horizon or 1), ["action"])}


def _config(indices: Any, keys: Any) -> dict[str, Any]:
    """A ModalityConfig as the clients of N1.6 and N1.7 read it; N1.5's expects text in its place."""
    return {
        "__ModalityConfig_class__": True,
        "as_json": {"delta_indices": list(indices), "modality_keys": list(keys)},
    }
