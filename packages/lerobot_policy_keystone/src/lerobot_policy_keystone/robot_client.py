"""A token for LeRobot's robot client, which sends none."""

from typing import Any, NamedTuple

import grpc
from lerobot.transport import services_pb2_grpc


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _SendToken(grpc.UnaryUnaryClientInterceptor, grpc.StreamUnaryClientInterceptor):
    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), self._header]
        wait, compression = details.wait_for_ready, details.compression
        return continuation(
            _Details(details.method, details.timeout, metadata, details.credentials, wait, compression), request
        )

    intercept_stream_unary = intercept_unary_unary


def send_token(client: Any, token: str) -> None:
    """Let a LeRobot ``RobotClient`` send a token with every call. Call it before ``client.start()``.

    The connection is not encrypted: whoever sees the traffic sees the token.
    """
    client.stub = services_pb2_grpc.AsyncInferenceStub(grpc.intercept_channel(client.channel, _SendToken(token)))
