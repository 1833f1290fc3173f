"""LeRobot's gRPC server with a clean shutdown, and with distances on the steps that its client executes.

A separate module, because importing LeRobot's server configures logging and creates a directory ``logs``.
"""

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from lerobot.async_inference.configs import PolicyServerConfig
from lerobot.async_inference.policy_server import PolicyServer
from lerobot.transport import services_pb2_grpc

import keystone_robotics as keystone

RETURN_WHOLE_CHUNKS = ("pi0", "pi05", "smolvla")
"""Policies whose `predict_action_chunk` returns ``chunk_size`` steps; the others return ``n_action_steps``."""


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


def serve(config: PolicyServerConfig) -> None:
    """Serve until SIGINT or SIGTERM."""
    policy_server = KeystonePolicyServer(config)
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(policy_server, server)
    server.add_insecure_port(f"{config.host}:{config.port}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.stop(grace=2))
    server.start()
    policy_server.logger.info(f"KeyStone policy server on {config.host}:{config.port}")
    server.wait_for_termination()
    policy_server.stop()
