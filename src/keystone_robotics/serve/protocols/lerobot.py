"""LeRobot's gRPC protocol, for its unmodified ``robot_client``: pickles, which are read without running them."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lerobot.async_inference.helpers import RemotePolicyConfig, TimedObservation
from lerobot.transport import services_pb2

from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve.address import Tls
from keystone_robotics.serve.messages import Refused, Reply
from keystone_robotics.serve.protocols import rpc
from keystone_robotics.serve.protocols.decoding import in_thread
from keystone_robotics.serve.protocols.lerobot_messages import frame, read_instructions, read_observation, timed
from keystone_robotics.serve.service import Client, Service

log = logging.getLogger("keystone.serve")

BEGIN, END = services_pb2.TransferState.TRANSFER_BEGIN, services_pb2.TransferState.TRANSFER_END
#: Seconds in which a request for actions waits for an observation: LeRobot's default.
PATIENCE = 2.0


async def listen(service: Service, host: str, port: int, tls: Tls | None) -> rpc.GrpcListener:
    """Open a port."""
    robots, empty = Robots(service), services_pb2.Empty
    methods = {
        "Ready": rpc.Method(empty, empty, robots.ready),
        "SendPolicyInstructions": rpc.Method(
            services_pb2.PolicySetup, empty, robots.instruct, lambda part: rpc.PartPlace(True, True)
        ),
        "SendObservations": rpc.Method(
            services_pb2.Observation,
            empty,
            robots.observe,
            lambda part: rpc.PartPlace(part.transfer_state == BEGIN, part.transfer_state == END),
        ),
        "GetActions": rpc.Method(empty, services_pb2.Actions, robots.act),
    }
    return await rpc.listen(service, host, port, tls, "lerobot", "transport.AsyncInference", methods)


@dataclass(eq=False)
class Peer:
    """What a robot client has said and not yet fetched.

    Attributes:
        instructions: what it expects of the policy.
        outcome: of its newest observation, until it is fetched.
        arrived: there is an outcome.
    """

    instructions: RemotePolicyConfig | None = None
    outcome: tuple[TimedObservation, Reply | Refused] | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class Robots:
    """The four calls of LeRobot's client."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._peers: weakref.WeakKeyDictionary[Client, Peer] = weakref.WeakKeyDictionary()

    def _peer(self, client: Client) -> Peer:
        return self._peers.setdefault(client, Peer())

    async def ready(self, client: Client, message: bytes) -> tuple[Any, Mapping[str, str]]:
        """A new episode."""
        self._service.reset(client, {})
        peer = self._peer(client)
        peer.outcome = None
        peer.arrived.clear()
        return services_pb2.Empty(), {}

    async def instruct(self, client: Client, message: bytes) -> tuple[Any, Mapping[str, str]]:
        """What the client expects; the policy is loaded already, and no other one is."""
        try:
            self._peer(client).instructions = self._accept(await in_thread(read_instructions, message))
        except KeystoneError as error:
            raise rpc.CallFailed("INVALID_ARGUMENT", str(error)) from None
        return services_pb2.Empty(), {}

    async def observe(self, client: Client, message: bytes) -> tuple[Any, Mapping[str, str]]:
        """Returns once the observation is queued; `act` brings the answer."""
        peer = self._peer(client)
        if peer.instructions is None:
            raise rpc.CallFailed("FAILED_PRECONDITION", "expected SendPolicyInstructions first")
        try:
            observation = await in_thread(read_observation, message)
            inputs, task = frame(observation, peer.instructions, self._service.model.interface.inputs)
        except KeystoneError as error:
            self._service.metrics.refused.labels("message").inc()
            raise rpc.CallFailed("INVALID_ARGUMENT", str(error)) from None
        running = asyncio.ensure_future(self._infer(client, peer, observation, inputs, task))
        client.tasks.add(running)
        running.add_done_callback(client.tasks.discard)
        return services_pb2.Empty(), {}

    async def act(self, client: Client, message: bytes) -> tuple[Any, Mapping[str, str]]:
        """The chunk of the newest observation; empty if there is none for two seconds."""
        peer = self._peer(client)
        try:
            await asyncio.wait_for(peer.arrived.wait(), PATIENCE)
        except asyncio.TimeoutError:
            return services_pb2.Actions(), {}
        peer.arrived.clear()
        found, peer.outcome = peer.outcome, None
        if found is None or peer.instructions is None:
            return services_pb2.Actions(), {}
        observation, outcome = found
        if isinstance(outcome, Refused):
            raise rpc.CallFailed("ABORTED", str(outcome))
        agreed = outcome.report.get("agreed_steps")  # of an adaptive horizon
        actions = outcome.actions[: min(peer.instructions.actions_per_chunk, agreed or len(outcome.actions))]
        reply = services_pb2.Actions(data=pickle.dumps(timed(actions, observation)))
        return reply, {"keystone": json.dumps(outcome.report)}

    async def _infer(
        self, client: Client, peer: Peer, observation: TimedObservation, inputs: dict[str, Any], task: str
    ) -> None:
        outcome: Reply | Refused
        try:
            outcome = await self._service.act(client, inputs, task=task, observed_at=observation.timestamp)
            if outcome.actions is None:
                raise Refused("model", "this policy answers in a format of its own, which LeRobot's client cannot read")
        except Refused as refusal:
            self._service.count_refused(client, refusal)
            if refusal.reason == "replaced":  # by the client's own newer observation
                return
            outcome = refusal
        except Exception as error:
            log.exception("lerobot: a request failed")
            outcome = Refused("model", f"the server failed: {type(error).__name__}")
            self._service.count_refused(client, outcome)
        peer.outcome = observation, outcome
        peer.arrived.set()

    def _accept(self, instructions: RemotePolicyConfig) -> RemotePolicyConfig:
        served = self._service.model.interface
        kind = served.policy_type or instructions.policy_type
        if instructions.policy_type != kind:
            raise KeystoneError(f"policy_type={instructions.policy_type!a}: this server serves a policy of type {kind}")
        name = instructions.pretrained_name_or_path
        if name != served.name and Path(name).name != Path(served.name).name:
            raise KeystoneError(
                f"pretrained_name_or_path={name!a}: this server serves {served.name}, and loads no other policy"
            )
        return instructions
