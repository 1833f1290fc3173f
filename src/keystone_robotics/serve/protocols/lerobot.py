"""LeRobot's gRPC protocol, for its unmodified ``robot_client``: pickles, which are read without running them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import pickle
import weakref
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from lerobot.async_inference.helpers import RemotePolicyConfig, TimedAction, TimedObservation
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.transport import services_pb2
from lerobot.utils.feature_utils import build_dataset_frame

from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve import unpickle
from keystone_robotics.serve.address import Tls
from keystone_robotics.serve.messages import Refused, Reply
from keystone_robotics.serve.service import Client, KnownClients, Service

log = logging.getLogger("keystone.serve")

BEGIN, END = services_pb2.TransferState.TRANSFER_BEGIN, services_pb2.TransferState.TRANSFER_END
#: What clients send and receive.
CALLS = {
    "Ready": (services_pb2.Empty, services_pb2.Empty),
    "SendPolicyInstructions": (services_pb2.PolicySetup, services_pb2.Empty),
    "SendObservations": (services_pb2.Observation, services_pb2.Empty),
    "GetActions": (services_pb2.Empty, services_pb2.Actions),
}
#: Seconds in which a request for actions waits for an observation, and between actions: LeRobot's defaults.
PATIENCE, STEP = 2.0, 1 / 30
#: Values that are joined to an input that the policy does not take.
MOST_NAMES = 1000


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
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Servicer:
    """The four calls of LeRobot's client. All take a stream of parts, also those whose client sends one message: gRPC would
    wait for that one for ever, and before the token is checked.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._clients = KnownClients(service, "lerobot")
        self._peers: weakref.WeakKeyDictionary[Client, Peer] = weakref.WeakKeyDictionary()
        self._receiving = 0  # bytes of all streams that have not ended

    async def Ready(self, parts: Any, context: Any) -> Any:  # noqa: N802
        """A new episode."""
        async with self._calling(context) as (client, peer):
            self._service.reset(client, {})
            peer.outcome = None
            peer.arrived.clear()
        return services_pb2.Empty()

    async def SendPolicyInstructions(self, parts: Any, context: Any) -> Any:  # noqa: N802
        """What the client expects; the policy is loaded already, and no other one is."""
        async with self._calling(context) as (_, peer):
            data = await self._receive(parts, context)
            try:
                peer.instructions = self._accept(await _in_thread(read_instructions, data))
            except KeystoneError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return services_pb2.Empty()

    async def SendObservations(self, parts: Any, context: Any) -> Any:  # noqa: N802
        """Returns once the observation is queued; `GetActions` brings the answer."""
        async with self._calling(context) as (client, peer):
            data = await self._receive(parts, context)
            if peer.instructions is None:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "expected SendPolicyInstructions first")
            try:
                observation = await _in_thread(read_observation, data)
                inputs, task = _frame(observation, peer.instructions, self._service.model.served.inputs)
            except KeystoneError as error:
                self._service.metrics.refused.labels("message").inc()
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        running = asyncio.ensure_future(self._act(client, peer, observation, inputs, task))
        peer.tasks.add(running)
        running.add_done_callback(peer.tasks.discard)
        return services_pb2.Empty()

    async def GetActions(self, parts: Any, context: Any) -> Any:  # noqa: N802
        """The chunk of the newest observation; empty if there is none for two seconds."""
        async with self._calling(context) as (_, peer):
            try:
                await asyncio.wait_for(peer.arrived.wait(), PATIENCE)
            except asyncio.TimeoutError:
                return services_pb2.Actions()
        peer.arrived.clear()
        found, peer.outcome = peer.outcome, None
        if found is None or peer.instructions is None:
            return services_pb2.Actions()
        observation, outcome = found
        if isinstance(outcome, Refused):
            # not UNAVAILABLE, which the client would answer with four retries
            await context.abort(grpc.StatusCode.ABORTED, str(outcome))
            raise outcome
        context.set_trailing_metadata((("keystone", json.dumps(outcome.report)),))
        agreed = outcome.report.get("agreed_steps")  # of an adaptive horizon
        actions = outcome.actions[: min(peer.instructions.actions_per_chunk, agreed or len(outcome.actions))]
        return services_pb2.Actions(data=pickle.dumps(_timed(actions, observation)))

    async def _act(
        self, client: Client, peer: Peer, observation: TimedObservation, inputs: dict[str, Any], task: str
    ) -> None:
        outcome: Reply | Refused
        try:
            outcome = await self._service.act(client, inputs, task=task, observed_at=observation.timestamp)
            if outcome.actions is None:
                outcome = Refused(
                    "model", "this policy answers in a format of its own, which LeRobot's client cannot read"
                )
        except Refused as refusal:
            if refusal.reason == "replaced":  # by the client's own newer observation
                return
            outcome = refusal
        except Exception as error:
            log.exception("lerobot: a request failed")
            outcome = Refused("model", f"the server failed: {type(error).__name__}")
        peer.outcome = observation, outcome
        peer.arrived.set()

    def _accept(self, instructions: RemotePolicyConfig) -> RemotePolicyConfig:
        served = self._service.model.served
        config = getattr(served.policy, "config", None)
        kind = getattr(config, "type", instructions.policy_type)
        if instructions.policy_type != kind:
            raise KeystoneError(f"policy_type={instructions.policy_type!a}: this server serves a policy of type {kind}")
        name = instructions.pretrained_name_or_path
        if name != served.name and Path(name).name != Path(served.name).name:
            raise KeystoneError(
                f"pretrained_name_or_path={name!a}: this server serves {served.name}, and loads no other policy"
            )
        return instructions

    @contextlib.asynccontextmanager
    async def _calling(self, context: Any) -> AsyncIterator[tuple[Client, Peer]]:
        """The client of a call, which counts as connected while it calls; its robot always waits for actions."""
        if not self._service.guard.admits_header(_header(context)):
            self._service.metrics.refused.labels("token").inc()
            expected = "expected the server's token in the metadata: authorization: Bearer TOKEN"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, expected)
        client = self._clients[context.peer()]
        try:
            with self._service.using(client):
                yield client, self._peers.setdefault(client, Peer())
        except Refused as refusal:
            self._service.metrics.refused.labels(refusal.reason).inc()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(refusal))

    async def _receive(self, parts: AsyncIterator[Any], context: Any) -> bytes:
        """The bytes of a stream up to its end, or those of one message."""
        guard = self._service.guard
        received = bytearray()

        async def read() -> bool:
            async for item in parts:
                if isinstance(item, services_pb2.Observation) and item.transfer_state == BEGIN:
                    self._receiving -= len(received)
                    received.clear()
                received.extend(item.data)
                self._receiving += len(item.data)
                if len(received) > guard.max_message:
                    raise Refused(
                        "message", f"the message is larger than {guard.max_message / 1e6:g} MB (--max-message-mb)"
                    )
                if self._receiving > 4 * guard.max_message:
                    raise Refused(
                        "full", f"all clients together are sending more than {4 * guard.max_message / 1e6:g} MB"
                    )
                if not isinstance(item, services_pb2.Observation) or item.transfer_state == END:
                    return True
            return False

        try:
            if await asyncio.wait_for(read(), guard.read_timeout):
                return bytes(received)
        except Refused as refusal:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(refusal))
        except asyncio.TimeoutError:
            # not DEADLINE_EXCEEDED, which LeRobot's client would answer with four retries
            await context.abort(grpc.StatusCode.ABORTED, f"the message was not complete after {guard.read_timeout:g} s")
        finally:
            self._receiving -= len(received)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the stream ended before the message was complete")
        raise AssertionError("abort raises")


def _header(context: Any) -> str | None:
    found = [value for name, value in context.invocation_metadata() if name == "authorization"]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None


async def _in_thread(function: Any, data: bytes) -> Any:
    """A hostile pickle takes a while to read, and the event loop has other clients."""
    return await asyncio.get_running_loop().run_in_executor(None, function, data)


def _frame(
    observation: TimedObservation, instructions: RemotePolicyConfig, expected: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """A robot's raw observation with LeRobot's names, as its own server makes it; and the task.

    Args:
        observation: of the client.
        instructions: with its features: which values are joined to an input.
        expected: an example of each input of the policy.
    """
    raw = observation.observation
    try:
        _check_features(instructions, raw, expected)
        frame = build_dataset_frame(instructions.lerobot_features, raw, prefix="observation")
    except Refused:
        raise
    except Exception as error:
        raise Refused("observation", f"the observation does not fit the client's features: {error!r}") from None
    inputs = {instructions.rename_map.get(name, name): value for name, value in frame.items()}
    return inputs, str(raw.get("task", ""))[:4096]


def _check_features(instructions: RemotePolicyConfig, raw: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Before values are joined: names and sizes of values come from the client, and their product could be any size."""
    for key, feature in instructions.lerobot_features.items():
        like = expected.get(instructions.rename_map.get(key, key))
        if not key.startswith("observation") or feature["dtype"] != "float32" or len(feature["shape"]) != 1:
            continue
        if like is not None and len(feature["names"]) != len(like):
            raise Refused("observation", f"{key!a} has {len(feature['names'])} names: the policy takes {len(like)}")
        if like is None and len(feature["names"]) > MOST_NAMES:
            raise Refused("observation", f"{key!a} has more than {MOST_NAMES} names")
        for name in feature["names"]:
            if np.ndim(raw[name]) != 0:
                raise Refused("observation", f"{str(name)[:50]!a} has shape {np.shape(raw[name])}: expected one number")


def _timed(actions: Any, observation: TimedObservation) -> list[TimedAction]:
    import torch

    first = observation.timestep
    return [
        TimedAction(
            timestamp=observation.timestamp + number * STEP, timestep=first + number, action=torch.tensor(action)
        )
        for number, action in enumerate(actions)
    ]


def read_instructions(data: bytes) -> RemotePolicyConfig:
    """The instructions of a client.

    Raises:
        RefusedPickle: if the bytes are anything else.
    """
    instructions = unpickle.loads(data, (RemotePolicyConfig, PolicyFeature, FeatureType))
    _expect(instructions, RemotePolicyConfig)
    for name in ("policy_type", "pretrained_name_or_path", "device"):
        _expect(getattr(instructions, name), str, name)
    for name in ("lerobot_features", "rename_map"):
        _expect(getattr(instructions, name), dict, name)
    for old, new in instructions.rename_map.items():
        _expect(old, str, "a name in rename_map")
        _expect(new, str, "a name in rename_map")
    _expect(instructions.actions_per_chunk, int, "actions_per_chunk")
    if isinstance(instructions.actions_per_chunk, bool) or instructions.actions_per_chunk < 1:
        raise unpickle.RefusedPickle(f"actions_per_chunk={instructions.actions_per_chunk!r}: expected 1 or more")
    return instructions


def read_observation(data: bytes) -> TimedObservation:
    """The observation of a client.

    Raises:
        RefusedPickle: if the bytes are anything else.
    """
    observation = unpickle.loads(data, (TimedObservation,))
    _expect(observation, TimedObservation)
    _expect(observation.timestep, int, "timestep")
    _expect(observation.timestamp, float, "timestamp")
    _expect(observation.must_go, bool, "must_go")
    _expect(observation.observation, dict, "observation")
    if not math.isfinite(observation.timestamp):
        raise unpickle.RefusedPickle(f"timestamp={observation.timestamp}: expected a finite number")
    return observation


def _expect(value: object, kind: type, name: str = "message") -> None:
    if not isinstance(value, kind):
        raise unpickle.RefusedPickle(f"{name} is a {type(value).__name__}: expected a {kind.__name__}")


class GrpcListener:
    """An open port."""

    def __init__(self, server: Any, port: int) -> None:
        self._server, self.port = server, port

    async def close(self) -> None:
        """Stop to listen and close all connections."""
        await self._server.stop(grace=1)


async def listen(service: Service, host: str, port: int, tls: Tls | None) -> GrpcListener:
    """Open a port."""
    guard = service.guard
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),  # or the kernel would give half of the clients to another server on the port
            ("grpc.max_receive_message_length", 4 * 2**20),  # of one part of a stream; clients send 2 MB
            ("grpc.server_handshake_timeout_ms", int(1000 * guard.read_timeout)),
            ("grpc.max_connection_idle_ms", int(1000 * guard.idle_timeout)),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.max_concurrent_streams", 16),
            ("grpc.max_allowed_incoming_connections", 4 * guard.max_connections),
        ],
    )
    servicer = Servicer(service)
    handlers = {
        name: grpc.stream_unary_rpc_method_handler(getattr(servicer, name), request.FromString, reply.SerializeToString)
        for name, (request, reply) in CALLS.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("transport.AsyncInference", handlers),))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, grpc.ssl_server_credentials([(tls.key, tls.cert)]))
    except RuntimeError as error:
        raise KeystoneError(f"cannot serve on {address}: {error}") from None
    await server.start()
    return GrpcListener(server, bound)
