"""LeRobot's gRPC server for clients that are not trusted, with distances on the steps that its client executes.

A separate module, because importing LeRobot's server configures logging and creates a directory ``logs``.
"""

import asyncio
import math
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
from lerobot.async_inference.helpers import RemotePolicyConfig, TimedObservation
from lerobot.async_inference.policy_server import PolicyServer
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.transport import services_pb2, services_pb2_grpc

import keystone_robotics as keystone
from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve import unpickle
from keystone_robotics.network import bears, read_token, refuse_busy_port, refuse_open_address
from keystone_robotics.policies.remote_code import remote_code
from lerobot_policy_keystone.policy_server import KeystonePolicyServerConfig

RETURN_WHOLE_CHUNKS = ("pi0", "pi05", "smolvla")
"""Policies whose `predict_action_chunk` returns ``chunk_size`` steps; the others return ``n_action_steps``."""

BEGIN, END = services_pb2.TransferState.TRANSFER_BEGIN, services_pb2.TransferState.TRANSFER_END


class KeystonePolicyServer(PolicyServer):
    """LeRobot's server; distances are measured on the steps that the client requests."""

    def SendPolicyInstructions(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = super().SendPolicyInstructions(request, context)
        if self.policy is not None and keystone.attached(self.policy) is not None:
            config = self.policy.config
            returned = config.chunk_size if self.policy_type in RETURN_WHOLE_CHUNKS else config.n_action_steps
            config.n_action_steps = min(self.actions_per_chunk, returned)
            self.logger.info(f"KeyStone compares the {config.n_action_steps} steps per chunk that the client executes")
        return answer

    def Ready(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A client has connected: a new episode begins."""
        handle = keystone.attached(self.policy)
        if handle is not None:
            handle.reset_history()
        return super().Ready(request, context)


class GuardedServicer(services_pb2_grpc.AsyncInferenceServicer):
    """Receives for a `PolicyServer`, which unpickles nothing but what this class has read, checked and pickled again.

    Streams are received by an event loop, so that one that does not send occupies no thread.
    """

    def __init__(self, policy_server: PolicyServer, config: KeystonePolicyServerConfig) -> None:
        self.policy_server = policy_server
        self.checkpoints = config.checkpoints
        self.timeout = config.stream_timeout
        self.max_bytes = int(config.max_message_mb * 1e6)
        self.received_bytes = 0
        """Of all streams that have not ended."""
        self._receiving = ThreadPoolExecutor(1, "keystone-receive")  # LeRobot's queue takes one writer at a time
        self._answering = ThreadPoolExecutor(32, "keystone-answer")  # GetActions waits for an observation

    async def Ready(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._call(self._receiving, self.policy_server.Ready, request, context)

    async def GetActions(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._call(self._answering, self.policy_server.GetActions, request, context)

    async def SendPolicyInstructions(self, request: Any, context: Any) -> Any:  # noqa: N802
        def load(request: Any, context: Any) -> Any:
            instructions = read_instructions(request.data)
            path = instructions.pretrained_name_or_path
            if self.checkpoints and path not in self.checkpoints:
                raise KeystoneError(f"checkpoint {path!a} is not one of --checkpoints")
            data = pickle.dumps(instructions)
            with remote_code(path, trusted=False):
                return self.policy_server.SendPolicyInstructions(services_pb2.PolicySetup(data=data), context)

        return await self._call(self._answering, load, request, context)

    async def SendObservations(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        data = await self._receive(request_iterator, context)

        def store(data: bytes, context: Any) -> Any:
            data = pickle.dumps(read_observation(data))
            message = services_pb2.Observation(transfer_state=END, data=data)
            return self.policy_server.SendObservations(iter([message]), context)

        return await self._call(self._receiving, store, data, context)

    async def _receive(self, request_iterator: Any, context: Any) -> bytes:
        """The bytes of a stream up to its end."""
        received = bytearray()
        try:
            async with asyncio.timeout(self.timeout):
                async for item in request_iterator:
                    if item.transfer_state == BEGIN:
                        self.received_bytes -= len(received)
                        received.clear()
                    received += item.data
                    self.received_bytes += len(item.data)
                    if len(received) > self.max_bytes:
                        problem = f"the observation is larger than {self.max_bytes / 1e6:g} MB (--max_message_mb)"
                        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, problem)
                    if self.received_bytes > 4 * self.max_bytes:
                        problem = f"all clients together are sending more than {4 * self.max_bytes / 1e6:g} MB"
                        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, problem)
                    if item.transfer_state == END:
                        return bytes(received)
        except TimeoutError:
            # not DEADLINE_EXCEEDED, which LeRobot's client would answer with four retries
            problem = f"the observation was not complete after {self.timeout:g} s (--stream_timeout)"
            return await context.abort(grpc.StatusCode.ABORTED, problem)
        finally:
            self.received_bytes -= len(received)
        problem = "the stream ended before the observation was complete"
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)

    async def _call(self, pool: ThreadPoolExecutor, method: Callable[..., Any], request: Any, context: Any) -> Any:
        peer = context.peer()
        # LeRobot uses nothing else of the context, which belongs to the event loop
        client = SimpleNamespace(peer=lambda: peer)
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, method, request, client)
        except KeystoneError as error:  # a refused pickle, a policy that is not supported
            self.policy_server.logger.warning(f"Refused a call of {peer}: {error}")
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


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


class RequireToken(grpc.aio.ServerInterceptor):
    """Answers calls without the token with UNAUTHENTICATED."""

    def __init__(self, token: str) -> None:
        self._token = token
        # a handler of streams, which does not wait for a first message
        self._refusal = grpc.stream_unary_rpc_method_handler(self._refuse)

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        authorization = dict(details.invocation_metadata).get("authorization")
        if isinstance(authorization, str) and bears(authorization, self._token):
            return await continuation(details)
        return self._refusal

    @staticmethod
    async def _refuse(requests: Any, context: Any) -> None:
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED, "expected the server's token in the metadata: authorization: Bearer TOKEN"
        )


async def start(config: KeystonePolicyServerConfig, policy_server: PolicyServer) -> grpc.aio.Server:
    """Start to serve.

    Raises:
        KeystoneError: if the address is open to a network without a token, or in use.
    """
    token = read_token(config.token_file) if config.token_file else None
    refuse_open_address(config.host, token is not None, config.insecure)
    refuse_busy_port(config.host, config.port)
    server = grpc.aio.server(
        interceptors=[RequireToken(token)] if token else [],
        options=[
            ("grpc.so_reuseport", 0),  # or the kernel would give half of the clients to another server on the port
            ("grpc.max_receive_message_length", 4 * 2**20),  # of one part of a stream; clients send 2 MB
        ],
    )
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(GuardedServicer(policy_server, config), server)
    try:
        server.add_insecure_port(
            f"[{config.host}]:{config.port}" if ":" in config.host else f"{config.host}:{config.port}"
        )
    except RuntimeError as error:
        raise KeystoneError(f"cannot serve on {config.host}:{config.port}: {error}") from None
    await server.start()
    return server


def serve(config: KeystonePolicyServerConfig) -> None:
    """Serve until SIGINT or SIGTERM."""
    policy_server = KeystonePolicyServer(config)

    async def run() -> None:
        server = await start(config, policy_server)
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        policy_server.logger.info(f"KeyStone policy server on {config.host}:{config.port}")
        await stopped.wait()
        await server.stop(grace=2)

    asyncio.run(run())
    policy_server.stop()
