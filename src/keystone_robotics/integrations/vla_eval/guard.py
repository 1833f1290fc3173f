"""Guards of vla-eval's HTTP and websocket server: web pages, changes of options by strangers, huge messages."""

from __future__ import annotations

import ipaddress
import json
import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from vla_eval.model_servers import serve as vla_eval_serve

from keystone_robotics.errors import KeystoneError
from keystone_robotics.integrations.vla_eval.serving import Serving
from keystone_robotics.network import bears, is_loopback

MAX_K = 1024
"""Largest K that ``/config`` sets."""

#: vla-eval's own options, which it accepts without bounds: type, smallest and largest value.
_BOUNDS: dict[str, tuple[Callable[[str], float], float, float]] = {
    "max_batch_size": (int, 1, 4096),
    "max_wait_time": (float, 0, 60),
}


class Guard:
    """Decides about requests to a server with KeyStone; vla-eval answers those that pass."""

    def __init__(self, serving: Serving, answer: Callable[[Any, Any], Any]) -> None:
        self.serving = serving
        self.answer = answer

    def __call__(self, connection: Any, request: Any) -> Any:
        """`process_request` of the websocket server: an HTTP response, or None to open a websocket. Never waits."""
        if from_a_web_page(request.headers):
            return _refuse(connection, HTTPStatus.FORBIDDEN, "requests of web pages of other hosts are refused")
        url = urlsplit(request.path)
        if url.path != "/config" or not url.query:
            return self.answer(connection, request)
        if self.serving.token is not None:
            if not any(bears(value, self.serving.token) for value in request.headers.get_all("Authorization")):
                return _refuse(
                    connection, HTTPStatus.UNAUTHORIZED, "expected the server's token: Authorization: Bearer TOKEN"
                )
        elif not is_loopback(str(connection.remote_address[0])):
            return _refuse(
                connection, HTTPStatus.FORBIDDEN, "changes from other machines need a server with token_file"
            )
        problems = [problem for key, values in parse_qs(url.query).items() if (problem := _outside(key, values[-1]))]
        if problems:
            return _refuse(connection, HTTPStatus.UNPROCESSABLE_ENTITY, *problems)
        return self._change(connection, request)

    def _change(self, connection: Any, request: Any) -> Any:
        """Apply a change, unless a self-check is running: it may take minutes, and this is the event loop."""
        if self.serving.handle is None:
            return self.answer(connection, request)
        checking = self.serving.handle.engine.checking
        if not checking.acquire(blocking=False):
            response = _refuse(connection, HTTPStatus.SERVICE_UNAVAILABLE, "busy with the self-check: try again")
            response.headers["Retry-After"] = "1"
            return response
        try:
            return self.answer(connection, request)
        finally:
            checking.release()


def from_a_web_page(headers: Any) -> bool:
    """Whether a browser says that a page of another host has sent a request. Programs send none of these headers.

    An image or a link of a page sends no ``Origin``, but ``Sec-Fetch-Site`` (to localhost) or ``Referer``. A page whose
    name was made to resolve to this machine has the name of the ``Host``, so that a browser may use no other name than
    localhost or an address.
    """
    sites, sources = headers.get_all("Sec-Fetch-Site"), [*headers.get_all("Origin"), *headers.get_all("Referer")]
    if not sites and not sources:
        return False
    host = ",".join(headers.get_all("Host"))
    return (
        any(site not in ("same-origin", "none") for site in sites)
        or any(_netloc(source) != host for source in sources)
        or not _is_address(host)
    )


def install() -> None:
    """Guard the servers with KeyStone that vla-eval starts in this process; others are unchanged.

    Raises:
        KeystoneError: if this vla-eval has no place for it.
    """
    make, open_server = (getattr(vla_eval_serve, name, None) for name in ("_make_process_request", "ws_serve"))
    if make is None or open_server is None:
        raise KeystoneError("this version of vla-eval cannot be guarded: expected vla-eval 0.8")
    if hasattr(make, "guarded"):
        return

    def make_guarded(model_server: Any) -> Any:
        serving = getattr(model_server, "_keystone_serving", None)
        answer = make(model_server)
        return answer if serving is None else Guard(serving, answer)

    def open_guarded(*args: Any, **kwargs: Any) -> Any:
        guard = kwargs.get("process_request")
        if isinstance(guard, Guard):
            kwargs["max_size"] = guard.serving.options.max_bytes
        return open_server(*args, **kwargs)

    make_guarded.guarded = make  # type: ignore[attr-defined]
    vla_eval_serve._make_process_request = make_guarded
    vla_eval_serve.ws_serve = open_guarded


def candidates(text: str) -> int:
    """K from the text of a request.

    >>> candidates("8")
    8
    >>> candidates("999999")
    Traceback (most recent call last):
    ValueError: '999999': expected a whole number from 1 to 1024
    """
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= MAX_K:
        raise ValueError(f"{text[:50]!r}: expected a whole number from 1 to {MAX_K}")
    return int(text)


def _outside(key: str, text: str) -> str:
    """What is wrong with a value of vla-eval's own options; vla-eval says what is wrong with the others."""
    if key not in _BOUNDS:
        return ""
    kind, least, most = _BOUNDS[key]
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    return "" if least <= value <= most else f"bad value for {key}: {text[:50]!r}: expected {least} to {most}"


def _refuse(connection: Any, status: HTTPStatus, *problems: str) -> Any:
    return connection.respond(status, json.dumps({"errors": problems}) + "\n")


def _netloc(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    """Whether a ``Host`` is localhost or an IP address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
