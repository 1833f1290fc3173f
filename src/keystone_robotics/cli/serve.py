"""The command `keystone serve`: one server for the robots people already have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import tyro

from keystone_robotics.cli.flags import given, spec_flags
from keystone_robotics.errors import KeystoneError
from keystone_robotics.spec import flag_of, options_from_environment, spec_from

SpecFlags = spec_flags()


def run(
    policy: Annotated[str, tyro.conf.Positional],
    spec: tyro.conf.OmitArgPrefixes[SpecFlags],  # type: ignore[valid-type]
    protocol: str = "openpi",
    host: str = "127.0.0.1",
    port: int | None = None,
    token_file: Path | None = None,
    insecure: bool = False,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    deadline_ms: float | None = None,
    max_age: float | None = None,
    least_k: int = 1,
    least_steps: int | None = None,
    max_batch: int = 16,
    max_waiting: int = 256,
    max_connections: int = 64,
    max_message_mb: float = 64.0,
    idle_timeout: float = 600.0,
    rename: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    metrics_port: int | None = None,
    log: Literal["text", "json"] = "text",
    device: str | None = None,
    trust_remote_code: bool = False,
    replicas: int | None = None,
    ray: str | None = None,
    gpus: float = 0.0,
    dry_run: bool = False,
) -> None:
    """Serve a policy to robots: openpi's, RoboArena's, GR00T's, LeRobot's and StarVLA's clients, unmodified.

    The policy is loaded once and warmed up, self-check included, before a port is opened. Requests that wait are answered in
    one round. With deadlines, K is reduced while robots wait and given back when they do not (docs/serve.md). Flags override
    KEYSTONE_* environment variables.

    Args:
        policy: LeRobot checkpoint (folder or hub name), a policy of keystone-study, or package.module:function that returns an
            Agent or any policy with infer, get_action or predict_action.
        spec: how candidates are drawn and one is selected; K is the most that a robot gets.
        protocol: openpi, roboarena, groot, lerobot, starvla; several with commas, each with its port if need be:
            openpi,groot:5556.
        host: address to listen on; any other than loopback needs --token-file or --insecure.
        port: of the only protocol; default what its clients expect (openpi and roboarena 8000, groot 5555, lerobot 8080,
            starvla 10093).
        token_file: file with a token that clients must send.
        insecure: serve a network without a token.
        tls_cert: certificate chain (PEM), for wss:// and gRPC over TLS.
        tls_key: its key (PEM).
        deadline_ms: by when a reply should be there, for clients that do not say; default never.
        max_age: seconds after which an observation is not answered any more; default never.
        least_k: K is not reduced below.
        least_steps: denoising steps are not reduced below; default they are not reduced. Needs steps in the Spec.
        max_batch: robots in a round.
        max_waiting: requests in the queue; further ones are refused.
        max_connections: clients at a time; further ones are refused.
        max_message_mb: largest message in MB.
        idle_timeout: seconds without a message after which a connection is closed.
        rename: CLIENT=POLICY, an input that the client calls otherwise: observation/image=observation.images.top.
        metrics_port: a port for /healthz, /readyz and /metrics, which WebSocket ports have anyway.
        log: text for people, json for machines: one object a line.
        device: where to run; default the checkpoint's.
        trust_remote_code: run code that a LeRobot checkpoint names but LeRobot did not install (docs/security.md).
        replicas: processes with a policy of their own, on Ray Serve; default the policy runs in this process.
        ray: where replicas run: "local" on this machine (default), "auto" on the running Ray cluster, or its address.
        gpus: of each replica.
        dry_run: load, check and warm up, print what would be served, and end.
    """
    wanted = spec_from(given(spec), options_from_environment())
    from keystone_robotics.network import read_token
    from keystone_robotics.policies.load import check_names
    from keystone_robotics.serve.address import check_address, make_tls, parse_protocols
    from keystone_robotics.serve.scheduler import check_spec

    check_spec(wanted)
    ports = parse_protocols(protocol, port)
    _check_positive(
        deadline_ms=deadline_ms, max_age=max_age, least_k=least_k, least_steps=least_steps, max_batch=max_batch,
        max_waiting=max_waiting, max_connections=max_connections, max_message_mb=max_message_mb, idle_timeout=idle_timeout,
        replicas=replicas,
    )  # fmt: skip
    renamed = dict(_pair(one) for one in rename)
    token = None if token_file is None else read_token(token_file)
    tls = make_tls(tls_cert, tls_key)
    check_address(host, ports, token, insecure, tls)
    check_names(policy)

    from keystone_robotics.serve.launch import Launch, launch
    from keystone_robotics.serve.scheduler import Limits
    from keystone_robotics.serve.service import Guard

    limits = Limits(deadline_ms, math.inf if max_age is None else max_age, max_batch, max_waiting, least_k, least_steps)
    limits.settings(1, wanted.steps)  # refuses what does not go together
    guard = Guard(token, max_connections, int(max_message_mb * 1e6), idle_timeout=idle_timeout)
    options = Launch(
        policy, wanted, limits, guard, host, ports, tls, metrics_port, renamed, device, trust_remote_code, log,
        replicas or 1, ray or (None if replicas is None else "local"), gpus,
    )  # fmt: skip
    launch(options, dry_run)


def _check_positive(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not value > 0:
            raise KeystoneError(f"{flag_of(name)} {value:g}: expected a number above 0")


def _pair(text: str) -> tuple[str, str]:
    name, sign, other = text.partition("=")
    if not (name and sign and other):
        raise KeystoneError(f"--rename {text}: expected CLIENT=POLICY, as in observation/image=observation.images.top")
    return name, other
