"""openpi's WebSocket protocol, and RoboArena's variant of it with an ``endpoint`` in each message."""

from __future__ import annotations

from typing import Any

from keystone_robotics.serve.messages import Refused, Reply
from keystone_robotics.serve.protocols.arrays import pack_openpi, unpack
from keystone_robotics.serve.service import Client, Service

PORT = 8000


def greeting(service: Service) -> bytes:
    """The metadata that a client expects before it sends anything."""
    return pack_openpi(service.metadata)


async def answer(service: Service, client: Client, message: bytes) -> bytes | str:
    """The reply to a message. Text is what openpi's client raises as an error, and how RoboArena's reset is confirmed."""
    observation = unpack(message)
    if not isinstance(observation, dict):
        raise Refused("message", f"the message is a {type(observation).__name__}: expected an observation, a dict")
    if not all(isinstance(key, str) for key in observation):
        return "the observation has a key that is not text"
    endpoint = observation.pop("endpoint", "infer")
    if not isinstance(endpoint, str):
        return f"endpoint is a {type(endpoint).__name__}: expected infer or reset"
    if endpoint not in ("infer", "reset"):
        raise Refused("message", f"endpoint {endpoint[:50]!a}: expected infer or reset")
    try:
        if endpoint == "reset":
            service.reset(client, observation)
            return "reset successful"
        reply = await service.act(client, observation)
    except Refused as refusal:
        if refusal.reason == "message":
            raise
        return str(refusal)
    return pack_openpi({**_content(reply), "keystone": reply.report, "server_timing": _timing(reply)})


def _content(reply: Reply) -> dict[str, Any]:
    if reply.actions is not None:
        return {"actions": reply.actions}
    return reply.own if isinstance(reply.own, dict) else {"actions": reply.own}


def _timing(reply: Reply) -> dict[str, float]:
    return {"infer_ms": reply.report["model_ms"], "queue_ms": reply.report["queue_ms"]}
