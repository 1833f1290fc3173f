"""From options to a running server: load, attach, warm up, listen."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from keystone_robotics.integrations.round_log import environment_listeners
from keystone_robotics.monitor.alarm import Alarm
from keystone_robotics.serve.address import Tls
from keystone_robotics.serve.logs import log_to_stderr
from keystone_robotics.serve.metrics import Metrics
from keystone_robotics.serve.model import Model
from keystone_robotics.serve.replica import Loading, Replicas, WarmUp
from keystone_robotics.serve.scheduler import Limits
from keystone_robotics.serve.server import serve
from keystone_robotics.serve.service import Guard, Service
from keystone_robotics.spec import Spec


@dataclass(frozen=True)
class Launch:
    """Everything that `keystone serve` was told."""

    policy: str
    spec: Spec
    limits: Limits
    guard: Guard
    host: str
    ports: Mapping[str, int]
    tls: Tls | None = None
    metrics_port: int | None = None
    rename: Mapping[str, str] | None = None
    device: str | None = None
    trust_remote_code: bool = False
    log: str = "text"
    replicas: int = 1
    ray: str | None = None
    gpus: float = 0.0


def launch(options: Launch, dry_run: bool = False) -> None:
    """Serve until SIGTERM or SIGINT; with ``dry_run`` end before a port is opened."""
    log_to_stderr(options.log)
    listeners, metrics = environment_listeners(), Metrics()
    calibration = next((one.calibration for one in listeners if isinstance(one, Alarm)), None)
    loading = Loading(
        options.policy, options.spec, options.device, options.trust_remote_code, options.rename, calibration
    )
    with contextlib.closing(_replicas(options, loading)) as replicas:
        model = Model(replicas, options.limits, listeners, metrics.on_batch)
        _describe(model, model.warm_up())
        _serve(options, Service(model, options.guard, metrics), dry_run)


def _replicas(options: Launch, loading: Loading) -> Replicas:
    if options.ray is None:
        return loading.replica()
    from keystone_robotics.serve.ray_replicas import RayReplicas

    name = f"keystone-{socket.gethostname()}-{next(iter(options.ports.values()))}"
    return RayReplicas(loading, options.limits, options.replicas, options.ray, options.gpus, name)


def _describe(model: Model, found: WarmUp) -> None:
    interface, settings, count = model.interface, model.scheduler.settings, model.replicas.count
    largest = model.limits.sizes(interface.batches)[-1]
    rounds = [(1, settings[0]), (1, settings[-1]), (largest, settings[0])]
    times = ", ".join(
        f"{1e3 * found.latency.estimate(robots, setting):.3g} ms for {robots} at K={setting.k}"
        for robots, setting in dict.fromkeys(rounds)
    )
    _say(f"warmed up in {found.seconds:.1f} s: rounds take {times}")
    inputs = ", ".join(f"{name} {example.shape}" for name, example in interface.inputs.items())
    several = f", {count} replicas" if count > 1 else ""
    _say(f"{interface.name}, {model.replicas.spec}{several}; takes {inputs or 'what its own clients send'}")


def _serve(options: Launch, service: Service, dry_run: bool) -> None:
    if dry_run:
        _say(
            f"dry run: would serve {', '.join(f'{name} on {options.host}:{port}' for name, port in options.ports.items())}"
        )
        return

    def on_ready(ports: dict[str, int]) -> None:
        _say("serving " + ", ".join(f"{name} on {options.host}:{port}" for name, port in ports.items()))

    asyncio.run(serve(service, options.host, options.ports, options.tls, options.metrics_port, on_ready))
    _say("drained")


def _say(line: str) -> None:
    sys.stdout.write(f"keystone serve: {line}\n")
    sys.stdout.flush()
