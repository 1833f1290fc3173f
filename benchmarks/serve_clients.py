"""One robot's client of each protocol, the same for `keystone serve` and for the server that the protocol comes from."""

from __future__ import annotations

import json
import pickle
import time
from typing import Any

import numpy as np

STATE = "environment_state"
Report = dict[str, Any]


class OpenpiRobot:
    """openpi-client."""

    def __init__(self, port: int, number: int, policy: str) -> None:
        from openpi_client.websocket_client_policy import WebsocketClientPolicy

        self._client = WebsocketClientPolicy("127.0.0.1", port)

    def act(self, state: Any) -> Report | None:
        """One round; what the server said of it, empty if nothing, None if there was no reply to this observation."""
        found: Report = self._client.infer({STATE: state}).get("keystone", {})
        return found

    def close(self) -> None:
        """End the connection."""
        self._client._ws.close()


class StarvlaRobot:
    """StarVLA's messages."""

    def __init__(self, port: int, number: int, policy: str) -> None:
        from websockets.sync.client import connect

        self._connection = connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None)
        self._connection.recv()

    def act(self, state: Any) -> Report | None:
        """See `OpenpiRobot.act`."""
        from openpi_client import msgpack_numpy

        example = {"image": [], "lang": "push", "state": state[None]}
        message = {"type": "infer", "request_id": "1", "payload": {"examples": [example]}}
        self._connection.send(msgpack_numpy.packb(message))
        reply = msgpack_numpy.unpackb(self._connection.recv())
        assert reply["ok"], reply
        found: Report = reply["data"].get("keystone", [{}])[0]
        return found

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


class GrootRobot:
    """GR00T's messages, as N1.6 writes them."""

    def __init__(self, port: int, number: int, policy: str) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REQ)
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def act(self, state: Any) -> Report | None:
        """See `OpenpiRobot.act`."""
        from keystone_robotics.serve.protocols.arrays import pack_groot, unpack

        data = {"observation": {"state": {"state": state[None, None]}}, "options": None}
        self._socket.send(pack_groot({"endpoint": "get_action", "data": data}))
        reply = unpack(self._socket.recv())
        assert "error" not in reply, reply
        found: Report = reply[1].get("keystone", [{}])[0]
        return found

    def close(self) -> None:
        """End the connection."""
        self._context.destroy(0)


class LerobotRobot:
    """The calls of LeRobot's robot client: an observation, then the newest actions, of whichever observation they are."""

    def __init__(self, port: int, number: int, policy: str) -> None:
        import grpc
        from lerobot.async_inference.helpers import RemotePolicyConfig
        from lerobot.transport import services_pb2, services_pb2_grpc

        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])
        self._stub = services_pb2_grpc.AsyncInferenceStub(self._channel)
        self._messages, self._timestep, self._policy = services_pb2, 1_000_000 * (number + 1), policy
        self._config = RemotePolicyConfig
        self._stub.Ready(services_pb2.Empty())
        self._instructed = False

    def act(self, state: Any) -> Report | None:
        """See `OpenpiRobot.act`."""
        from lerobot.async_inference.helpers import TimedObservation
        from lerobot.transport.utils import send_bytes_in_chunks

        names = [f"s{number}" for number in range(len(state))]
        if not self._instructed:
            features = {"observation.state": {"dtype": "float32", "shape": (len(state),), "names": names}}
            rename = {"observation.state": STATE}
            config = self._config("flow", self._policy, features, 16, "cpu", rename)
            self._stub.SendPolicyInstructions(self._messages.PolicySetup(data=pickle.dumps(config)))
            self._instructed = True
        self._timestep += 1000
        raw = dict(zip(names, map(float, state), strict=True))
        data = pickle.dumps(TimedObservation(time.time(), self._timestep, raw, True))
        self._stub.SendObservations(send_bytes_in_chunks(data, self._messages.Observation, silent=True))
        reply, call = self._stub.GetActions.with_call(self._messages.Empty())
        actions = pickle.loads(reply.data) if reply.data else []
        if not actions or actions[0].get_timestep() != self._timestep:
            return None
        found: Report = json.loads(dict(call.trailing_metadata()).get("keystone", "{}"))
        return found

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


ROBOTS: dict[str, Any] = {
    "openpi": OpenpiRobot,
    "groot": GrootRobot,
    "lerobot": LerobotRobot,
    "starvla": StarvlaRobot,
}


def state_of(number: int, dim: int) -> Any:
    """An observation (dim,) of a robot."""
    return np.random.default_rng(number).normal(size=dim).astype(np.float32)
