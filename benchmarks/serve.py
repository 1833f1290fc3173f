"""`keystone serve` against openpi's own server, on the same policy with the same K, over loopback.

    KEYSTONE_UPSTREAM=… python -m benchmarks.serve                    # throughput and latency; see docs/upstream.md
    python -m benchmarks.serve --soak                                 # memory over 200,000 requests and 10,000 reconnects
    python -m benchmarks.serve --fuzz 100000                          # fuzzed messages to each protocol

Both servers are processes with one thread for the model. Blocks of requests to one and to the other alternate, so that other
load on the machine disturbs both alike. Compared are medians over blocks; CPU milliseconds per request are the server
process's own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import keystone_robotics as keystone
from benchmarks import harness

RESULTS = Path(__file__).parent / "results" / "serve.json"
CLIENTS = (1, 2, 4, 8, 16)
STATE = "environment_state"


def observation_dim(policy: str) -> int:
    """Numbers that a shipped policy takes."""
    from keystone_robotics.policies.load import find_policy

    folder = find_policy(policy)
    assert folder is not None
    return int(json.loads((folder / "config.json").read_text())["observation_dim"])


def run_stock(policy: str, spec: str) -> None:
    """Openpi's own server, from its source, with a policy to which KeyStone is attached as docs/openpi.md says."""
    from keystone_robotics.policies.load import load_agent

    path = Path(os.environ["KEYSTONE_UPSTREAM"]) / "openpi/src/openpi/serving/websocket_policy_server.py"
    loaded = importlib.util.spec_from_file_location("websocket_policy_server", path)
    assert loaded is not None
    assert loaded.loader is not None
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    agent = load_agent(policy)
    keystone.attach(agent.policy, spec)

    class Policy:
        def infer(self, observation: dict[str, Any]) -> dict[str, Any]:
            return {"actions": agent.plan([[observation]], [""])[0]}

    Policy().infer(agent.example())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print(f"serving openpi on 127.0.0.1:{port}", flush=True)
    module.WebsocketPolicyServer(Policy(), "127.0.0.1", port).serve_forever()


@contextlib.contextmanager
def server(command: list[str]) -> Iterator[tuple[dict[str, int], Any]]:
    """The ports of a server in a process, and the process."""
    import psutil

    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "serving " in line:
                break
        else:
            raise SystemExit(f"{' '.join(command)} did not start")
        yield (
            {name: int(port) for name, port in re.findall(r"(\w+) on [\d.]+:(\d+)", line)},
            psutil.Process(process.pid),
        )
    finally:
        process.terminate()
        process.communicate()


def ours(policy: str, spec: str, *more: str) -> list[str]:
    """The command of our server."""
    return ["-m", "keystone_robotics", "serve", policy, "--spec", spec, "--protocol", "openpi:0", *more]


def block(port: int, process: Any, clients: int, requests: int, dim: int) -> dict[str, Any]:
    """Requests of several clients at once, each waiting for its reply as a robot does."""
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    connected: list[Any] = []
    while len(connected) < clients:
        with contextlib.suppress(ConnectionRefusedError):
            connected.append(WebsocketClientPolicy("127.0.0.1", port))
    latencies: list[float] = []
    reports: list[dict[str, Any]] = []

    def act(client: Any, seed: int) -> None:
        state = np.random.default_rng(seed).normal(size=dim).astype(np.float32)
        for _ in range(requests):
            begin = time.perf_counter()
            reply = client.infer({STATE: state})
            latencies.append(time.perf_counter() - begin)
            reports.append(reply.get("keystone", {}))

    threads = [threading.Thread(target=act, args=(one, number)) for number, one in enumerate(connected)]
    before, begin = sum(process.cpu_times()[:2]), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    for client in connected:
        client._ws.close()
    p50, p95, p99 = np.percentile(latencies, [50, 95, 99])
    return {
        "per_second": len(latencies) / seconds, "p50_ms": 1e3 * p50, "p95_ms": 1e3 * p95, "p99_ms": 1e3 * p99,
        "cpu_ms": 1e3 * (sum(process.cpu_times()[:2]) - before) / len(latencies),
        "k": float(np.mean([one["k"] for one in reports])) if reports[0] else None,
        "late": float(np.mean([one["late"] for one in reports])) if reports[0] else None,
    }  # fmt: skip


def compare(policy: str, k: int, requests: int, blocks: int, deadline_ms: float) -> list[dict[str, Any]]:
    """Rows of medians over blocks, for each number of clients and server."""
    spec, dim = f"core-mean:k={k}", observation_dim(policy)
    kinds = {
        "keystone serve": ours(policy, spec),
        "with deadline": ours(policy, spec, "--deadline-ms", str(deadline_ms)),
    }
    if os.environ.get("KEYSTONE_UPSTREAM"):
        kinds["openpi's server"] = ["-m", "benchmarks.serve", "--stock", "--policy", policy, "--k", str(k)]
    rows = []
    with contextlib.ExitStack() as stack:
        running = {kind: stack.enter_context(server(command)) for kind, command in kinds.items()}
        for ports, process in running.values():
            block(ports["openpi"], process, 2, 5, dim)
        for clients in CLIENTS:
            found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
            for _ in range(blocks):
                for kind, (ports, process) in running.items():
                    found[kind].append(block(ports["openpi"], process, clients, requests, dim))
            for kind, some in found.items():
                row = {"policy": policy, "k_asked": k, "server": kind, "clients": clients}
                row |= {
                    name: None if some[0][name] is None else round(statistics.median(one[name] for one in some), 3)
                    for name in some[0]
                }
                if "deadline" in kind:
                    row["deadline_ms"] = deadline_ms
                if "openpi's server" in found:
                    pairs = zip(some, found["openpi's server"], strict=True)
                    row["ratio"] = round(statistics.median(a["per_second"] / b["per_second"] for a, b in pairs), 3)
                rows.append(row)
                print(json.dumps(row), flush=True)
    return rows


@keystone.factory
def small_policy() -> Any:
    """A policy whose rounds take a millisecond: what a soak measures is the server."""
    import torch

    from keystone_study.policies.flow import FlowConfig, FlowPolicy
    from keystone_study.policies.flow_agent import FlowAgent

    torch.manual_seed(0)
    config = FlowConfig(observation_dim=3, action_dim=2, horizon=6, n_action_steps=4, width=16, blocks=1)
    return FlowAgent(FlowPolicy(config).eval())


def soak(requests: int, reconnects: int, note: Callable[[dict[str, Any]], None], clients: int = 16) -> None:
    """Resident memory of the server after each tenth of the requests and connections, as far as it has come."""
    from openpi_client import msgpack_numpy
    from websockets.sync.client import connect

    message = msgpack_numpy.packb({STATE: np.zeros(3, np.float32), "prompt": "push"})

    def act(url: str, count: int, connections: int) -> None:
        for number in range(connections):
            with connect(url, compression=None) as connection:
                connection.recv()
                for _ in range(count // connections + (number < count % connections)):
                    connection.send(message)
                    assert isinstance(connection.recv(), bytes), "refused"

    with server(ours("benchmarks.serve:small_policy", "core-mean:k=2")) as (ports, process):
        seen, url = [], f"ws://127.0.0.1:{ports['openpi']}"
        for part in range(10):
            share = requests // 10 // clients, max(reconnects // 10 // clients, 1)
            with ThreadPoolExecutor(clients) as pool:
                for done in [pool.submit(act, url, *share) for _ in range(clients)]:
                    done.result()
            memory, spent = process.memory_info().rss / 2**20, sum(process.cpu_times()[:2])
            seen.append(round(memory, 1))
            print(f"{part + 1}/10: {memory:.1f} MiB, {process.num_fds()} files, {spent:.0f} s of CPU", flush=True)
            done, connections = (len(seen) * clients * one for one in share)
            note({"requests": done, "reconnects": connections, "mib": seen})


def fuzz(count: int) -> dict[str, int]:
    """Fuzzed messages of each protocol, by `python -m fuzz` (tests/fuzz/messages.py), which raises if something gives way."""
    names = ["openpi", "roboarena", "starvla", "groot", "lerobot"]
    command = [sys.executable, "-m", "fuzz", "--seconds", "1e9", "--count", str(-(-count // 100)), "--only", *names]
    path = os.pathsep.join([str(harness.ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        raise SystemExit(done.stderr)
    return {
        name: int(tried) for name, tried in re.findall(r"^(\w+) +\d+ cases +(\d+) tried", done.stdout, re.MULTILINE)
    }


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="metaworld-mixed")
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--per-client", type=int, default=40, help="requests of a client in a block")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--deadline-ms", type=float, default=100)
    parser.add_argument("--soak", action="store_true", help="measure memory over many requests and connections")
    parser.add_argument("--requests", type=int, default=200_000, help="of the soak")
    parser.add_argument("--reconnects", type=int, default=10_000, help="of the soak")
    parser.add_argument("--fuzz", type=int, default=0, help="fuzzed messages to each protocol")
    parser.add_argument("--stock", action="store_true", help="run openpi's server")
    given = parser.parse_args()
    if given.stock:
        run_stock(given.policy, f"core-mean:k={given.k}")
        return
    if given.soak:
        soak(given.requests, given.reconnects, lambda found: write("memory", found))
    elif given.fuzz:
        write("fuzz", fuzz(given.fuzz))
    else:
        write("throughput", compare(given.policy, given.k, given.per_client, given.blocks, given.deadline_ms))


def write(name: str, found: Any) -> None:
    """Replace a part of the results."""
    written = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    written |= {name: found, "machine": harness.describe_machine("python -m benchmarks.serve")}
    RESULTS.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
