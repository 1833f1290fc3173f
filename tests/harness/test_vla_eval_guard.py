"""vla-eval's server with KeyStone, over real HTTP and websockets: who may change what, and what holds nobody up."""

import contextlib
import http.client
import json
import socket
import threading
import time

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reach_policy import ReachPolicy
from reach_server import ReachServer
from vla_eval.connection import Connection
from vla_eval.model_servers.serve import serve_async
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from keystone_robotics.integrations.vla_eval import wrap_server
from keystone_robotics.integrations.vla_eval.guard import MAX_K, from_a_web_page

Wrapped = wrap_server(ReachServer)
TOKEN = "correct horse battery staple"


@contextlib.contextmanager
def served(server, host="127.0.0.1"):
    """vla-eval's server in a thread; yields its port."""
    ports, stop, started = [], threading.Event(), threading.Event()

    async def main():
        async with anyio.create_task_group() as tasks:
            ports.append(await tasks.start(serve_async, server, host, 0))
            started.set()
            while not stop.is_set():
                await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()

    thread = threading.Thread(target=anyio.run, args=(main,))
    thread.start()
    assert started.wait(60)
    try:
        yield ports[0]
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def server():
    return Wrapped(keystone={"k": 4, "max_message_mb": 2})


@pytest.fixture(scope="module")
def port(server):
    with served(server) as port:
        yield port


def get(port, path, host="127.0.0.1", **headers):
    """Status and answer."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    return response.status, body


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("keystone_k=8", 200, "8"),
        (f"keystone_k={MAX_K}", 200, f"{MAX_K}"),
        ("keystone_k=many", 422, "'many': expected a whole number from 1 to 1024"),
        ("keystone_k=0", 422, "'0': expected a whole number from 1 to 1024"),
        ("keystone_k=2.5", 422, "'2.5': expected a whole number"),
        (f"keystone_k={MAX_K + 1}", 422, "'1025': expected a whole number from 1 to 1024"),
        ("keystone_k=999999999999", 422, "'999999999999': expected a whole number from 1 to 1024"),
        (f"keystone_k={'9' * 6000}", 422, "expected a whole number from 1 to 1024"),
        ("keystone_q=8", 422, "unknown key: keystone_q"),
        ("max_batch_size=0", 422, "bad value for max_batch_size: '0': expected 1 to 4096"),
        ("max_batch_size=4", 200, "4"),
        ("max_wait_time=inf", 422, "bad value for max_wait_time: 'inf': expected 0 to 60"),
        ("max_wait_time=nan&keystone_k=2", 422, "bad value for max_wait_time"),
        ("", 200, "keystone_k"),
    ],
)
def test_values(server, port, query, status, says):
    server.keystone_k = 4
    got, body = get(port, f"/config?{query}")
    assert got == status
    assert says in json.dumps(body)
    assert server.keystone_k == (body["applied"].get("keystone_k", 4) if status == 200 else 4)
    assert (server.max_batch_size >= 1, 0 <= server.max_wait_time <= 60) == (True, True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Origin": "http://[broken"},
        {"Sec_Fetch_Site": "cross-site"},  # an image
        {"Sec_Fetch_Site": "same-site"},
        {"Referer": "http://evil.example/page"},
        {"Origin": "http://evil.example:{port}", "Host": "evil.example:{port}"},  # a name that resolves to this machine
        {"Sec_Fetch_Site": "same-origin", "Host": "evil.example:{port}"},
    ],
)
@pytest.mark.parametrize("path", ["/config?keystone_k=8", "/config"])
def test_web_pages_of_others_are_refused(server, port, headers, path):
    server.keystone_k = 4
    status, body = get(port, path, **{name: value.replace("{port}", str(port)) for name, value in headers.items()})
    assert status == 403
    assert "web pages of other hosts" in body["errors"][0]
    assert server.keystone_k == 4


def test_the_same_host_and_typed_addresses_are_obeyed(server, port):
    for k, headers in enumerate([{"Origin": f"http://127.0.0.1:{port}"}, {"Sec_Fetch_Site": "none"}], start=2):
        assert get(port, f"/config?keystone_k={k}", **headers)[0] == 200
        assert server.keystone_k == k
    headers = {"Origin": f"http://localhost:{port}", "Host": f"localhost:{port}", "Sec_Fetch_Site": "same-origin"}
    assert get(port, "/config?keystone_k=5", **headers)[0] == 200


def test_web_pages_cannot_open_websockets(port):
    with pytest.raises(InvalidStatus, match="403"):
        connect(f"ws://127.0.0.1:{port}", origin="http://evil.example", proxy=None)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Origin", "Referer", "Sec-Fetch-Site", "Host"]),
            st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=12).map(str.strip),
        ),
        max_size=5,
    )
)
def test_any_headers(headers):
    """Only an address that names itself passes."""
    browser = [value for name, value in headers if name != "Host"]
    assert from_a_web_page(Headers(headers)) == bool(browser)
    assert from_a_web_page(Headers([*headers, ("Origin", "http://evil.example")]))


def test_a_token(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    server = Wrapped(keystone={"k": 4, "token_file": str(tmp_path / "token")})
    with served(server) as port:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer \xe9"},
            {"Authorization": TOKEN},
        ):
            status, body = get(port, "/config?keystone_k=8", **headers)
            assert (status, "Bearer TOKEN" in body["errors"][0], server.keystone_k) == (401, True, 4)
        assert get(port, "/config")[0] == get(port, "/health")[0] == 200
        assert get(port, "/config?keystone_k=8", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert server.keystone_k == 8
        assert len(anyio.run(act, port)) == 1  # vla-eval's client has none and needs none


def test_other_machines_need_a_token(tmp_path):
    address = own_address()
    server = Wrapped(keystone={"k": 4})
    with served(server, "0.0.0.0") as port:
        status, body = get(port, "/config?keystone_k=8", host=address)
        assert (status, server.keystone_k) == (403, 4)
        assert "changes from other machines need a server with token_file" in body["errors"][0]
        assert get(port, "/config", host=address)[0] == 200
        assert get(port, "/config?keystone_k=8")[0] == 200
    (tmp_path / "token").write_text(TOKEN)
    server = Wrapped(keystone={"k": 4, "token_file": str(tmp_path / "token")})
    with served(server, "0.0.0.0") as port:
        assert get(port, "/config?keystone_k=8", host=address, Authorization=f"Bearer {TOKEN}")[0] == 200


def own_address() -> str:
    """An address of this machine other than loopback; connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address besides loopback")
        return probe.getsockname()[0]


async def act(port, steps=1):
    async with Connection(f"ws://127.0.0.1:{port}") as connection:
        await connection.start_episode({"task": {"name": "reach", "episode_idx": 0}})
        return [await connection.act({"state": np.zeros(2, np.float32)}) for _ in range(steps)]


def test_a_change_during_the_self_check_is_answered_at_once():
    inside, release = threading.Event(), threading.Event()

    class SlowPolicy(ReachPolicy):
        def sample(self, context, noise):
            inside.set()
            assert release.wait(60)
            return super().sample(context, noise)

    class Slow(ReachServer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self._brain = SlowPolicy()

    server = wrap_server(Slow)(keystone={"k": 4})
    with served(server) as port:
        client = threading.Thread(target=anyio.run, args=(act, port))
        client.start()
        assert inside.wait(60)
        begin = time.monotonic()
        status, body = get(port, "/config?keystone_k=8")
        assert (status, server.keystone_k) == (503, 4)
        assert "busy with the self-check: try again" in body["errors"][0]
        assert get(port, "/health")[0] == get(port, "/config")[0] == 200
        assert time.monotonic() - begin < 5
        release.set()
        client.join()
        assert get(port, "/config?keystone_k=8")[0] == 200
        assert server.keystone_k == 8


def exchange(port, message):
    with connect(f"ws://127.0.0.1:{port}", proxy=None) as websocket:
        websocket.send(message)
        return websocket.recv(timeout=60)


@pytest.mark.parametrize("in_fragments", [False, True])
def test_messages_over_the_limit_close_their_connection_only(port, in_fragments):
    message = (bytes(500_000) for _ in range(100)) if in_fragments else bytes(3_000_000)
    with pytest.raises(ConnectionClosed) as caught:
        exchange(port, message)
    assert caught.value.rcvd.code == 1009
    assert len(anyio.run(act, port, 2)) == 2


def test_without_keystone_vla_evals_server_is_unchanged():
    server = Wrapped()
    with served(server) as port:
        assert get(port, "/config?keystone_k=8") == (422, {"errors": ["server has no attribute: keystone_k"]})
        assert get(port, "/config?max_batch_size=7", Origin="http://elsewhere.example")[0] == 200
        with pytest.raises(ConnectionClosed) as caught:  # read, and then not understood
            exchange(port, bytes(70_000_000))
        assert caught.value.rcvd.code != 1009
