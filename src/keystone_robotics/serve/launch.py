"""From options to a running server: load, attach, warm up, listen."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from keystone_robotics.serve.address import Tls
from keystone_robotics.serve.logs import log_to_stderr
from keystone_robotics.serve.metrics import Metrics
from keystone_robotics.serve.model import Limits, Model
from keystone_robotics.serve.policy import load_served
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


def launch(options: Launch, dry_run: bool = False) -> None:
    """Serve until SIGTERM or SIGINT; with ``dry_run`` end before a port is opened."""
    log_to_stderr(options.log)
    served = load_served(options.policy, options.device, options.trust_remote_code, options.rename)
    metrics = Metrics()
    model = Model(served, options.spec, options.limits, metrics.on_round)
    model.warm_up(_say)
    service = Service(model, options.guard, metrics)
    inputs = ", ".join(f"{name} {example.shape}" for name, example in served.inputs.items())
    _say(f"{options.policy}, {model.handle.spec}; takes {inputs or 'what its own clients send'}")
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
