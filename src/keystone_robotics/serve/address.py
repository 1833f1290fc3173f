"""Where to listen: protocols, ports, TLS, and what is refused before anything is loaded."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.network import refuse_busy_port, refuse_open_address

#: Protocols, and the ports that their clients expect.
PORTS = {"openpi": 8000, "roboarena": 8000, "groot": 5555, "lerobot": 8080, "starvla": 10093}


def parse_protocols(text: str, port: int | None = None) -> dict[str, int]:
    """Protocols with their ports: ``openpi,groot:5556``.

    Args:
        text: names with optional ports.
        port: of the only protocol.

    >>> parse_protocols("openpi,groot:5556"), parse_protocols("openpi", 9000)
    ({'openpi': 8000, 'groot': 5556}, {'openpi': 9000})
    >>> parse_protocols("openpy")
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: there is no protocol 'openpy': did you mean 'openpi'? ...
    """
    found: dict[str, int] = {}
    for one in text.split(","):
        name, _, number = one.strip().partition(":")
        if name not in PORTS:
            raise KeystoneError(f"there is no protocol {name!r}: {nearest_name(name, PORTS)}")
        if number and not (number.isdigit() and int(number) < 65536):
            raise KeystoneError(f"{one}: expected a port from 0 to 65535")
        found[name] = int(number) if number else PORTS[name]
    if port is not None:
        if len(found) > 1:
            raise KeystoneError(f"--port {port} is for one protocol: give --protocol {text.split(',')[0]}:{port},…")
        found = dict.fromkeys(found, port)
    if taken := next((one for one in found if found[one] and [*found.values()].count(found[one]) > 1), None):
        raise KeystoneError(
            f"two protocols on port {found[taken]}: give one of them another, as in {taken}:{found[taken] + 1}"
        )
    return found


class Tls(NamedTuple):
    """A certificate and its key, as WebSockets and as gRPC take them."""

    context: ssl.SSLContext
    cert: bytes
    key: bytes


def make_tls(cert: Path | None, key: Path | None) -> Tls | None:
    """From a certificate and its key (PEM files); None without them."""
    if (cert is None) != (key is None):
        raise KeystoneError("TLS needs both --tls-cert and --tls-key")
    if cert is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
        return Tls(context, cert.read_bytes(), key.read_bytes())
    except (OSError, ssl.SSLError) as error:
        raise KeystoneError(f"the certificate {cert} cannot be used with the key {key}: {error}") from None


def check_address(host: str, ports: Mapping[str, int], token: str | None, insecure: bool, tls: Tls | None) -> None:
    """Refuse what would serve strangers, or nobody, before anything is loaded."""
    refuse_open_address(host, token is not None, insecure)
    if tls is not None and "groot" in ports:
        raise KeystoneError("groot: ZeroMQ has no TLS: serve it on 127.0.0.1 and reach it through ssh -L")
    for port in ports.values():
        if port:
            refuse_busy_port(host, port)
