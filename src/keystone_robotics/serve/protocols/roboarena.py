"""RoboArena's WebSocket protocol: openpi's messages with an ``endpoint``, after a greeting that says what to send."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from keystone_robotics.serve.messages import EPISODE, Refused
from keystone_robotics.serve.observations import policy_name
from keystone_robotics.serve.policy import Interface
from keystone_robotics.serve.protocols import openpi
from keystone_robotics.serve.protocols.arrays import pack_openpi
from keystone_robotics.serve.service import Client, Service

#: Of actions, where the policy's metadata say nothing else.
ACTION_SPACE = "joint_position"

read = openpi.read


def greeting(service: Service) -> bytes:
    """The fields of RoboArena's ``PolicyServerConfig``, and no other: clients pass all of them to that class."""
    return pack_openpi(_config(service.model.interface), "the policy's metadata")


async def answer(service: Service, client: Client, request: dict[Any, Any]) -> bytes | str:
    """The reply: a dict with ``actions``, all of which are executed. Text confirms a reset, or is raised as an error."""
    endpoint = request.pop("endpoint", "infer")
    endpoint = endpoint if isinstance(endpoint, str) else type(endpoint).__name__  # an array is equal to no text
    session = request.get("session_id")  # text, or one number
    if session is not None:
        request.setdefault(EPISODE, str(session))
    if endpoint == "reset":
        service.reset(client, request)
        return "reset successful"
    if endpoint != "infer":
        raise Refused("observation", f"endpoint {endpoint[:50]!a}: expected infer or reset")
    reply = await service.act(client, _with_state(service.model.interface, request))
    return openpi.packed(reply, reply.report.get("agreed_steps") or service.model.replicas.spec.most_steps)


def _config(interface: Interface) -> dict[str, Any]:
    """What clients are to send, from the names of the policy's inputs; its metadata may say otherwise."""
    renamed = {mine: theirs for theirs, mine in interface.rename.items()}
    names = [re.split(r"[./]", renamed.get(one, one))[-1] for one in interface.images]
    sizes = {interface.inputs[one].shape[:2] for one in interface.images}
    external = [int(found[1]) + 1 for one in names if (found := re.match(r"exterior_image_(\d)_", one))]
    config: dict[str, Any] = {
        "image_resolution": sizes.pop() if len(sizes) == 1 else None,
        "needs_wrist_camera": any(one.startswith("wrist_image") for one in names),
        "n_external_cameras": max(external, default=0),
        "needs_stereo_camera": any(one.endswith("_right") for one in names),
        "needs_session_id": True,
        "action_space": ACTION_SPACE,
    }
    if not interface.inputs:  # known to the policy alone: RoboArena's defaults
        config |= {"image_resolution": (224, 224), "needs_wrist_camera": True, "n_external_cameras": 1}
    return {name: interface.metadata.get(name, value) for name, value in config.items()}


def _with_state(interface: Interface, request: dict[Any, Any]) -> dict[Any, Any]:
    """With the policy's state joined from the arm's and the gripper's positions, where it has no input for each."""
    given = {policy_name(key, interface.rename) for key in request if isinstance(key, str)}
    if interface.state is None or interface.state in given:
        return request
    arm = str(interface.metadata.get("action_space", ACTION_SPACE)).partition("_")[0]  # joint or cartesian
    found = (request.get(f"observation/{one}_position") for one in (arm, "gripper"))
    parts = [np.ravel(one) for one in found if isinstance(one, np.ndarray)]
    return {**request, interface.state: np.concatenate(parts)} if len(parts) == 2 else request
