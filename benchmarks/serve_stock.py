"""The servers that come with openpi, GR00T, StarVLA and LeRobot, in front of a policy with KeyStone attached to it.

    KEYSTONE_UPSTREAM=… python -m benchmarks.serve_stock openpi --policy metaworld-mixed --k 16

Their code is taken from the checkouts in KEYSTONE_UPSTREAM (docs/upstream.md), LeRobot's from the installed package. None of it
is changed; the policy is called as each server calls its own.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import socket
import sys
import types
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np

import keystone_robotics as keystone

STATE = "environment_state"
#: The file of each server in the folder of checkouts; LeRobot is installed.
FILES = {
    "openpi": "openpi/src/openpi/serving/websocket_policy_server.py",
    "groot": "Isaac-GR00T-N1.6/gr00t/policy/server_client.py",
    "starvla": "starVLA/deployment/model_server/tools/websocket_policy_server.py",
}
Plan = Callable[[Any], Any]


def missing(name: str) -> str | None:
    """Why a server cannot be measured here; None if it can."""
    folder = os.environ.get("KEYSTONE_UPSTREAM", "")
    if name not in FILES or (folder and (Path(folder) / FILES[name]).exists()):
        return None
    return f"{FILES[name]} is not in KEYSTONE_UPSTREAM={folder}"


def _load(name: str, package: str = "") -> Any:
    """The module of a server; of its package only what the file itself imports."""
    path = Path(os.environ["KEYSTONE_UPSTREAM"]) / FILES[name]
    spec = importlib.util.spec_from_file_location(f"{package}.{path.stem}" if package else path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _package(name: str, folder: Path | None = None, **values: Any) -> None:
    module = types.ModuleType(name)
    module.__path__ = [] if folder is None else [str(folder)]
    vars(module).update(values)
    sys.modules[name] = module


def openpi(plan: Plan, port: int) -> None:
    """The WebSocket server of openpi."""

    class Policy:
        def infer(self, observation: dict[str, Any]) -> dict[str, Any]:
            return {"actions": plan(observation[STATE])}

    _load("openpi").WebsocketPolicyServer(Policy(), "127.0.0.1", port).serve_forever()


def groot(plan: Plan, port: int) -> None:
    """GR00T's ZeroMQ server."""

    class Policy:
        def get_action(self, observation: dict[str, Any], options: Any = None) -> Any:
            return {"action": plan(observation["state"]["state"][0, -1])[None]}, {}

        def reset(self, options: Any = None) -> dict[str, Any]:
            return {}

    folder = Path(os.environ["KEYSTONE_UPSTREAM"]) / FILES["groot"]
    _package("gr00t")
    _package("gr00t.data")
    _package("gr00t.data.types", ModalityConfig=type("ModalityConfig", (), {}))
    _package("gr00t.data.utils", to_json_serializable=vars)
    _package("gr00t.policy", folder.parent)
    _load("groot", "gr00t.policy").PolicyServer(Policy(), "127.0.0.1", port).run()


def starvla(plan: Plan, port: int) -> None:
    """StarVLA's WebSocket server."""

    class Policy:
        def predict_action(self, examples: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
            return {"actions": np.stack([plan(np.ravel(one["state"])) for one in examples])}

    _package("stock", (Path(os.environ["KEYSTONE_UPSTREAM"]) / FILES["starvla"]).parent)
    _load("starvla", "stock").WebsocketPolicyServer(Policy(), "127.0.0.1", port).serve_forever()


def lerobot(plan: Plan, port: int) -> None:
    """LeRobot's gRPC server as it starts itself, without the 33 ms that it waits by default so as not to be too fast."""
    import grpc
    import torch
    from lerobot.async_inference.configs import PolicyServerConfig
    from lerobot.async_inference.policy_server import PolicyServer
    from lerobot.transport import services_pb2, services_pb2_grpc

    class Server(PolicyServer):
        def SendPolicyInstructions(self, request: Any, context: Any) -> Any:  # noqa: N802
            return services_pb2.Empty()  # the policy is loaded

        def _predict_action_chunk(self, timed: Any) -> Any:
            raw = timed.get_observation()
            chunk = plan(np.array([value for name, value in raw.items() if name != "task"], np.float32))
            return self._time_action_chunk(timed.get_timestamp(), list(torch.from_numpy(chunk)), timed.get_timestep())

    Server.logger.disabled = True
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    config = PolicyServerConfig(host="127.0.0.1", port=port, inference_latency=0.0)
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(Server(config), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


SERVERS = {"openpi": openpi, "groot": groot, "lerobot": lerobot, "starvla": starvla}


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--k", type=int, required=True)
    given = parser.parse_args()
    from keystone_robotics.serve.policy import load_served

    served: Any = load_served(given.policy)
    keystone.attach(served.policy, f"core-mean:k={given.k}")

    def plan(state: Any) -> Any:
        return np.asarray(served.agent.plan([[{STATE: np.asarray(state, np.float32)}]], [""])[0])

    plan(served.agent.example()[STATE])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print(f"serving {given.server} on 127.0.0.1:{port}", flush=True)
    SERVERS[given.server](plan, port)


if __name__ == "__main__":
    main()
