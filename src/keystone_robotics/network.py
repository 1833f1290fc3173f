"""Checks of servers that listen on a network: addresses, ports, tokens."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import socket
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError

SHORTEST_TOKEN = 16


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "gpu-box", "")]
    [True, True, True, True, False, False, False]
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def read_token(path: str | Path) -> str:
    """The token in a file, without white space around it.

    Raises:
        KeystoneError: if there is none, or one that can be guessed.
    """
    try:
        token = Path(path).expanduser().read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KeystoneError(f"token file {path} cannot be read: {error}") from None
    if len(token) < SHORTEST_TOKEN:
        raise KeystoneError(
            f"token file {path} has {len(token)} characters: expected {SHORTEST_TOKEN} or more, as from openssl rand -hex 32"
        )
    return token


def bears(authorization: str | None, token: str) -> bool:
    """Whether the header ``authorization`` of a request has the token. Takes the same time for every wrong one.

    >>> bears("Bearer 0123456789abcdef", "0123456789abcdef"), bears("Bearer 0123", "0123456789abcdef"), bears(None, "0123")
    (True, False, False)
    """
    given = (authorization or "").encode(errors="surrogateescape")  # as HTTP servers decode what is not ASCII
    return hmac.compare_digest(given, f"Bearer {token}".encode())


def refuse_open_address(host: str, has_token: bool, insecure: bool) -> None:
    """Refuse to serve everybody on a network, unless told so.

    >>> refuse_open_address("0.0.0.0", has_token=False, insecure=False)
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: host 0.0.0.0 is open to the network: ...
    """
    if not (is_loopback(host) or has_token or insecure):
        raise KeystoneError(
            f"host {host} is open to the network: expected 127.0.0.1 (reach it through ssh -L), or a token (--token-file), or "
            "--insecure on a network where you trust every machine"
        )


def refuse_busy_port(host: str, port: int) -> None:
    """Refuse a port on which another process listens, on one of the addresses of a host.

    gRPC starts a server if it can bind one of several addresses (127.0.0.1 and ::1 of localhost), and two servers on one
    port with SO_REUSEPORT get every other client each.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise KeystoneError(f"host {host} is unknown: {error}") from None
    if any(_in_use(family, address) for family, _, _, _, address in addresses):
        raise KeystoneError(f"port {port} of {host} is in use: stop that server, or choose another port")


def _in_use(family: int, address: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only listeners count, not old connections
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # not: a family or an address that this machine does not have
    return False
