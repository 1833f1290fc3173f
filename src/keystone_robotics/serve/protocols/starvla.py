"""StarVLA's WebSocket protocol: ``{type, request_id, payload}``, or the payload alone, with several ``examples`` in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from keystone_robotics.serve.messages import Refused, take_options
from keystone_robotics.serve.protocols.arrays import pack_openpi, unpack_dict
from keystone_robotics.serve.service import Client, Service


def greeting(service: Service) -> bytes:
    """The metadata that a client expects before it sends anything."""
    return pack_openpi({"env": "keystone", **service.metadata}, "the policy's metadata")


def read(service: Service, message: bytes) -> dict[Any, Any]:
    """The envelope of a message, or its payload alone."""
    return unpack_dict(message, "a dict with examples")


async def answer(service: Service, client: Client, request: dict[Any, Any]) -> bytes:
    """The reply to a message."""
    about = {"type": "inference_result", "request_id": request.get("request_id", "default")}
    kind, payload = request.get("type", "infer"), request.get("payload", request)
    kind = kind if isinstance(kind, str) else type(kind).__name__  # an array is equal to no text
    if kind == "ping":
        return pack_openpi({"status": "ok", "ok": True, **about, "type": "ping"})
    try:
        if kind == "reset":
            service.reset(client, payload if isinstance(payload, dict) else {})
            return pack_openpi({"status": "ok", "ok": True, **about, "type": "reset"})
        if kind not in ("infer", "predict_action") or not isinstance(payload, dict):
            raise Refused("observation", f"type {kind[:50]!a}: expected infer, ping or reset, with a payload")
        data = await _predict(service, client, {k: v for k, v in payload.items() if k not in ("type", "request_id")})
        return pack_openpi({"status": "ok", "ok": True, **about, "data": data})
    except Refused as refusal:
        service.count_refused(client, refusal)
        return pack_openpi({"status": "error", "ok": False, **about, "error": {"message": str(refusal)}})


async def _predict(service: Service, client: Client, payload: dict[str, Any]) -> dict[str, Any]:
    interface, options = service.model.interface, take_options(payload)
    if not interface.inputs:  # StarVLA's own policy
        reply = await service.act(client, payload, **options)
        return {**(reply.own if isinstance(reply.own, dict) else {"actions": reply.own}), "keystone": [reply.report]}
    examples = payload.get("examples")
    if not isinstance(examples, list) or not all(isinstance(one, dict) for one in examples):
        raise Refused("observation", "the payload has no examples: expected a list of dicts with image, lang and state")
    observations = [_observation(service, one) for one in examples]
    tasks = [str(one.get("lang", ""))[:4096] for one in examples]
    replies = await service.act_for_all(client, observations, tasks, **options)
    return {"actions": np.stack([one.actions for one in replies]), "keystone": [one.report for one in replies]}


def _observation(service: Service, example: dict[str, Any]) -> dict[str, Any]:
    """Images by their order, as the client and the policy have agreed on; the state flat."""
    interface = service.model.interface
    images = example.get("image", [])
    images = list(images) if isinstance(images, (list, tuple)) else [images]
    if len(images) != len(interface.images):
        raise Refused(
            "observation",
            f"an example has {len(images)} images: the policy takes {', '.join(interface.images) or 'none'}",
        )
    observation = dict(zip(interface.images, images, strict=True))
    if interface.state is not None and "state" in example:
        try:
            observation[interface.state] = np.ravel(np.asarray(example["state"]))
        except ValueError:  # lists of several lengths
            raise Refused("observation", "the state of an example is no array: expected numbers") from None
    return observation
