"""openpi's WebSocket protocol: an observation in, a dict with ``actions`` out."""

from __future__ import annotations

from typing import Any

import numpy as np

from keystone_robotics.serve.messages import Reply
from keystone_robotics.serve.protocols.arrays import pack_openpi, unpack_dict
from keystone_robotics.serve.service import Client, Service


def greeting(service: Service) -> bytes:
    """The metadata that a client expects before it sends anything."""
    return pack_openpi(service.metadata, "the policy's metadata")


def read(service: Service, message: bytes) -> dict[Any, Any]:
    """The observation of a message."""
    return unpack_dict(message, "an observation, a dict")


async def answer(service: Service, client: Client, request: dict[Any, Any]) -> bytes:
    """The reply to an observation. A refusal is sent as text, which openpi's client raises as an error."""
    return packed(await service.act(client, request))


def packed(reply: Reply, steps: int | None = None) -> bytes:
    """What the policy has answered, at most so many steps of it, and how it was made."""
    own = reply.own if reply.actions is None else reply.actions
    content = dict(own) if isinstance(own, dict) else {"actions": own}
    if steps is not None and isinstance(content.get("actions"), (np.ndarray, list)):
        content["actions"] = content["actions"][:steps]
    timing = {"infer_ms": reply.report["model_ms"], "queue_ms": reply.report["queue_ms"]}
    return pack_openpi({**content, "keystone": reply.report, "server_timing": timing})
