"""`keystone serve` against the servers that its protocols come from, on the same policy with the same K, over loopback.

    KEYSTONE_UPSTREAM=… python -m benchmarks.serve                    # throughput and latency; see docs/upstream.md
    python -m benchmarks.serve --policy benchmarks.serve:small_policy # the same of a tiny policy
    python -m benchmarks.serve --soak                                 # memory over 200,000 requests and 10,000 reconnects
    python -m benchmarks.serve --fuzz 100000                          # fuzzed messages to each protocol
    python -m benchmarks.serve --reducers                             # CPU time of each of `keystone_robotics.reducers`

All servers are processes with one thread for the model. Robots of one protocol ask one server and then the other, a second each
and by turns. Compared are medians over turns; CPU milliseconds per request are the server process's own. Other work on the
machine flatters batching: a round waits for a core once, whatever its size. `chrt --rr 5` before the command keeps it away.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import keystone_robotics as keystone
from benchmarks import harness, serve_stock
from benchmarks.serve_clients import ROBOTS, STATE, state_of

RESULTS = Path(__file__).parent / "results" / "serve.json"
CLIENTS = (1, 2, 4, 8, 16)


@contextlib.contextmanager
def server(command: list[str]) -> Iterator[tuple[dict[str, int], Any]]:
    """The ports of a server in a process, and the process."""
    import psutil

    folder = tempfile.TemporaryDirectory()  # LeRobot's server writes logs where it is started
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder.name,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(harness.ROOT)},
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
        folder.cleanup()


def ours(policy: str, spec: str, *more: str, protocols: Sequence[str] = ("openpi",)) -> list[str]:
    """The command of our server."""
    ports = ",".join(f"{name}:0" for name in protocols)
    return ["-m", "keystone_robotics", "serve", policy, "--spec", spec, "--protocol", ports, *more]


def turn(robots: Sequence[Any], states: Sequence[Any], process: Any, seconds: float) -> dict[str, Any]:
    """Robots that ask for some time, each waiting for its reply as a robot does."""
    latencies: list[float] = []
    reports: list[dict[str, Any] | None] = []
    end = time.perf_counter() + seconds

    def act(robot: Any, state: Any) -> None:
        while (begin := time.perf_counter()) < end:
            reports.append(robot.act(state))
            latencies.append(time.perf_counter() - begin)

    before, begin = sum(process.cpu_times()[:2]), time.perf_counter()
    with ThreadPoolExecutor(len(robots)) as pool:
        for done in [pool.submit(act, *pair) for pair in zip(robots, states, strict=True)]:
            done.result()
    elapsed = time.perf_counter() - begin
    own = [one for one in reports if one is not None]
    said = [one for one in own if one]
    p50, p95, p99 = np.percentile(
        [a for a, b in zip(latencies, reports, strict=True) if b is not None] or [math.nan], [50, 95, 99]
    )
    return {
        "per_second": len(own) / elapsed, "p50_ms": 1e3 * p50, "p95_ms": 1e3 * p95, "p99_ms": 1e3 * p99,
        "cpu_ms": 1e3 * (sum(process.cpu_times()[:2]) - before) / len(own) if own else None,
        "batch": float(np.mean([one["batch"] for one in said])) if said else None,
        "k": float(np.mean([one["k"] for one in said])) if said else None,
        "late": float(np.mean([one["late"] for one in said])) if said else None,
        "lost": 1 - len(own) / max(len(reports), 1),
    }  # fmt: skip


def compare(policy: str, k: int, seconds: float, turns: int, deadline_ms: float, protocols: Sequence[str]) -> Any:
    """Rows of medians over turns, for each protocol, number of robots and server."""
    from keystone_robotics.serve.policy import load_served

    spec, dim = f"core-mean:k={k}", len(load_served(policy).interface.inputs[STATE])
    commands = {
        "keystone serve": ours(policy, spec, protocols=protocols),
        "with deadline": ours(policy, spec, "--deadline-ms", str(deadline_ms), protocols=protocols),
    }
    for name in protocols:
        if (reason := serve_stock.missing(name)) is not None:
            print(f"{name}'s own server is not measured: {reason}", flush=True)
        else:
            commands[name] = ["-m", "benchmarks.serve_stock", name, "--policy", policy, "--k", str(k)]
    rows = []
    with contextlib.ExitStack() as stack:
        running = {kind: stack.enter_context(server(command)) for kind, command in commands.items()}
        for name, clients in itertools.product(protocols, CLIENTS):
            kinds = [one for one in ("keystone serve", "with deadline", name) if one in running]
            found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
            states = [state_of(number, dim) for number in range(clients)]
            with contextlib.ExitStack() as connected:
                robots = {
                    kind: [
                        connected.enter_context(
                            contextlib.closing(_connect(name, running[kind][0][name], number, policy))
                        )
                        for number in range(clients)
                    ]
                    for kind in kinds
                }
                for _ in range(turns + 1):
                    for kind in kinds:
                        found[kind].append(turn(robots[kind], states, running[kind][1], seconds))
            rows += [_row(found, kind, name, clients, policy, k, deadline_ms) for kind in kinds]
            for row in rows[-len(kinds) :]:
                print(json.dumps(row), flush=True)
    return rows


def model_bound(policy: str, k: int) -> dict[int, float]:
    """How much more a core could answer with rounds of several robots, if there were nothing but the model: by their number."""
    from keystone_robotics.serve.policy import load_served
    from keystone_robotics.serve.replica import Replica
    from keystone_robotics.serve.scheduler import Limits, Setting
    from keystone_robotics.spec import Spec

    replica = Replica(load_served(policy), Spec.parse(f"core-mean:k={k}"), clock=time.thread_time)
    found, setting = replica.warm_up(Limits(least_k=k)).latency, Setting(k)
    return {one: round(one * found.undisturbed(1, setting) / found.undisturbed(one, setting), 3) for one in CLIENTS}


def _connect(protocol: str, port: int, number: int, policy: str) -> Any:
    end = time.monotonic() + 60
    while time.monotonic() < end:  # it says its port before it listens
        with contextlib.suppress(OSError):
            return ROBOTS[protocol](port, number, policy)
    raise SystemExit(f"{protocol} does not listen on {port}")


def _row(
    found: dict[str, list[dict[str, Any]]], kind: str, name: str, clients: int, policy: str, k: int, ms: float
) -> Any:
    some = found[kind][1:]  # in the first turn connections and estimates settle
    row: dict[str, Any] = {"policy": policy, "k_asked": k, "protocol": name, "clients": clients}
    row["server"] = "stock" if kind == name else kind
    for key in some[0]:
        values = [one[key] for one in some if one[key] is not None and math.isfinite(one[key])]
        row[key] = round(statistics.median(values), 3) if values else None
    if kind == "with deadline":
        row["deadline_ms"] = ms
    if name in found:
        pairs = list(zip(some, found[name][1:], strict=True))
        for ratio, key, sign in (("ratio", "per_second", 1), ("cpu_ratio", "cpu_ms", -1)):
            known = [(a[key] / b[key]) ** sign for a, b in pairs if a[key] and b[key]]
            row[ratio] = round(statistics.median(known), 3) if len(known) == len(pairs) else None
    return row


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
            share = -(-requests // 10 // clients), -(-reconnects // 10 // clients)
            with ThreadPoolExecutor(clients) as pool:
                for done in [pool.submit(act, url, *share) for _ in range(clients)]:
                    done.result()
            memory, spent = process.memory_info().rss / 2**20, sum(process.cpu_times()[:2])
            seen.append(round(memory, 1))
            print(f"{part + 1}/10: {memory:.1f} MiB, {process.num_fds()} files, {spent:.0f} s of CPU", flush=True)
            done, connections = (len(seen) * clients * one for one in share)
            note({"requests": done, "reconnects": connections, "mib": seen})


def fuzz(count: int) -> dict[str, int]:
    """Fuzzed messages of each protocol, and a fifth as many connections to the ports of all, by `python -m fuzz`
    (tests/fuzz/messages.py, sockets.py), which raises if something gives way.
    """
    names = ["openpi", "roboarena", "starvla", "groot", "lerobot", "sockets"]
    command = [sys.executable, "-m", "fuzz", "--seconds", "1e9", "--count", str(-(-count // 100)), "--only", *names]
    path = os.pathsep.join([str(harness.ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        raise SystemExit(done.stderr)
    return {
        name: int(tried) for name, tried in re.findall(r"^(\w+) +\d+ cases +(\d+) tried", done.stdout, re.MULTILINE)
    }


def reducers() -> dict[str, float]:
    """CPU milliseconds of each reducer for 16 candidates of 50 steps and 7 dimensions: the median of 200 calls."""
    from keystone_robotics.reducers import REDUCERS, candidate_noise, reduce

    candidates, found = candidate_noise(0, 16, (50, 7)), {}
    for name in REDUCERS:
        times = []
        for _ in range(220):
            begin = time.thread_time()
            reduce(candidates, name)
            times.append(time.thread_time() - begin)
        found[name] = round(1e3 * statistics.median(times[20:]), 3)
    return found


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="metaworld-mixed")
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--protocol", nargs="+", choices=ROBOTS, default=list(ROBOTS))
    parser.add_argument("--deadline-ms", type=float, default=100)
    parser.add_argument("--soak", action="store_true", help="measure memory over many requests and connections")
    parser.add_argument("--requests", type=int, default=200_000, help="of the soak")
    parser.add_argument("--reconnects", type=int, default=10_000, help="of the soak")
    parser.add_argument("--fuzz", type=int, default=0, help="fuzzed messages to each protocol")
    parser.add_argument("--reducers", action="store_true", help="measure the reducers for engines")
    given = parser.parse_args()
    if given.reducers:
        write("reducers", reducers())
    elif given.soak:
        soak(given.requests, given.reconnects, lambda found: write("memory", found))
    elif given.fuzz:
        write("fuzz", fuzz(given.fuzz))
    else:
        rows = compare(given.policy, given.k, given.seconds, given.turns, given.deadline_ms, given.protocol)
        kept = [
            row for row in json.loads(RESULTS.read_text()).get("throughput", [])
            if row["policy"] != given.policy or row.get("protocol") not in given.protocol
        ]  # fmt: skip
        write("throughput", kept + rows)
        bounds = json.loads(RESULTS.read_text()).get("model_bound", {})
        write("model_bound", {**bounds, given.policy: model_bound(given.policy, given.k)})


def write(name: str, found: Any) -> None:
    """Replace a part of the results."""
    written = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    machine: dict[str, Any] = {**harness.describe_machine("chrt --rr 5 python -m benchmarks.serve")}
    machine |= {"load_average": os.getloadavg()[2], "real_time": os.sched_getscheduler(0) == os.SCHED_RR}
    written[name] = found
    if name == "throughput":  # what depends on it most
        written["machine"] = machine
    RESULTS.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
