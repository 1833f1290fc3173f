"""GR00T's clients on the wire: a REQ socket and the message formats of N1.5, N1.6 and N1.7, written from their sources."""

import io
import threading

import msgpack
import numpy as np
import pytest
import zmq
from serving import PointAgent, make_model, serving, state
from test_serve_openpi import connect, expected_chunk, in_threads, wait_until

from keystone_robotics.serve.protocols import groot
from keystone_robotics.serve.protocols.arrays import unpack_dict
from keystone_robotics.serve.service import Guard


def as_npy(value):
    """Arrays as N1.5 and N1.6 send them."""
    content = io.BytesIO()
    np.save(content, value, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": content.getvalue()}


def as_msgpack_numpy(value):
    """Arrays as N1.7 sends them, through msgpack-numpy."""
    return {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape, b"data": value.tobytes()}


def from_wire(found):
    return np.load(io.BytesIO(found["as_npy"]), allow_pickle=False) if "__ndarray_class__" in found else found


class Client:
    def __init__(self, port, encode=as_npy, token=None):
        self.socket = zmq.Context.instance().socket(zmq.REQ)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 20_000)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.encode, self.token = encode, token

    def call(self, endpoint, data=None):
        request = {"endpoint": endpoint, **({} if data is None else {"data": data})}
        if self.token:
            request["api_token"] = self.token
        default = lambda value: self.encode(value) if isinstance(value, np.ndarray) else value  # noqa: E731
        self.socket.send(msgpack.packb(request, default=default))
        return msgpack.unpackb(self.socket.recv(), object_hook=from_wire)

    def act(self, *firsts, **options):
        states = np.stack([state(first) for first in firsts])[:, None]  # (B, T, D)
        observation = {"video": {}, "state": {"joints": states}, "language": {"task": [["push"]] * len(firsts)}}
        return self.call("get_action", {"observation": observation, "options": options or None})


@pytest.fixture(scope="module")
def server():
    with serving("groot") as (service, ports):
        yield service, ports["groot"]


@pytest.mark.parametrize("encode", [as_npy, as_msgpack_numpy])
def test_actions_for_one_robot_and_for_several(server, encode):
    _, port = server
    client = Client(port, encode)
    assert client.call("ping") == {"status": "ok", "message": "Server is running"}
    action, info = client.act(1, keystone_seed=7)
    np.testing.assert_allclose(action["action"][0], expected_chunk((1,), 7), rtol=1e-5, atol=1e-6)
    assert info["keystone"][0]["k"] == 8
    action, info = client.act(1, 2, 3)
    assert action["action"].shape == (3, 6, 2)
    assert len(info["keystone"]) == 3
    assert client.call("reset", {"options": None}) == {}
    config = client.call("get_modality_config")
    assert config["action"]["as_json"]["delta_indices"] == list(range(6))


def test_the_flat_messages_of_n15(server):
    _, port = server
    reply = Client(port).call("get_action", {"state.joints": state(1)[None], "annotation.human.task": ["push"]})
    assert reply["action.action"].shape == (6, 2)


def test_nobody_stops_the_server_and_errors_are_words(server):
    _, port = server
    client = Client(port)
    assert "stop the server with SIGTERM" in client.call("kill")["error"]
    assert "no arrays" in client.call("get_action", {"observation": {}, "options": None})["error"]
    assert "out of reach" in client.act(500)["error"]
    assert "options is a int" in client.call("reset", {"options": 5})["error"]
    client.socket.send(b"\xc1 junk")
    assert b"not a valid message" in client.socket.recv()
    assert client.act(1)[0]["action"].shape == (1, 6, 2)


def test_robots_of_several_clients_share_a_round():
    agent = PointAgent()
    with serving("groot", model=make_model(agent=agent)) as (service, ports):
        clients = [Client(ports["groot"]) for _ in range(4)]
        agent.go.clear()
        first = threading.Thread(target=lambda: clients[0].act(1))
        first.start()
        assert agent.begun.wait(10)
        threading.Timer(0, lambda: (wait_until(lambda: service.model.waiting == 3), agent.go.set())).start()
        replies = in_threads([lambda c=c, n=n: c.act(n, keystone_seed=n) for n, c in enumerate(clients[1:], start=2)])
        first.join()
    assert [len(batch) for batch in agent.batches] == [1, 3]
    for number, (action, _) in enumerate(replies, start=2):
        np.testing.assert_allclose(action["action"][0], expected_chunk((number,), number), rtol=1e-4, atol=1e-5)


def test_the_token_of_groots_clients():
    with serving("groot", guard=Guard(token="0123456789abcdef")) as (_, ports):
        assert Client(ports["groot"], token="0123456789abcdef").act(1)[0]["action"].shape == (1, 6, 2)
        for token in (None, "0123456789abcdeg"):
            assert "Unauthorized" in Client(ports["groot"], token=token).call("ping")["error"]


def test_a_message_over_the_limit_ends_that_connection_only():
    with serving("groot", guard=Guard(max_message=10_000)) as (_, ports):
        big, other = Client(ports["groot"]), Client(ports["groot"])
        big.socket.setsockopt(zmq.RCVTIMEO, 500)
        with pytest.raises(zmq.error.Again):
            big.call("get_action", {"observation": {"state": {"x": np.zeros((1, 1, 10_000))}}})
        assert other.act(1)[0]["action"].shape == (1, 6, 2)


def test_clients_that_came_and_went_take_no_room():
    with serving("groot", "openpi", guard=Guard(max_connections=1)) as (service, ports):
        for number in range(10):
            client = Client(ports["groot"])
            client.act(number)
            client.socket.close()
            wait_until(lambda: service.connections == 0)
        assert not service.model._robots
        assert connect(ports).infer({"environment_state": state(1)})["actions"].shape == (6, 2)


def test_too_many_clients_are_refused_in_words_and_those_that_left_make_room():
    with serving("groot", guard=Guard(max_connections=1)) as (service, ports):
        one, two = Client(ports["groot"]), Client(ports["groot"])
        one.act(1)
        assert "1 clients are connected already" in two.act(1)["error"]
        one.socket.close()
        wait_until(lambda: service.connections == 0)
        assert two.act(1)[0]["action"].shape == (1, 6, 2)


def test_nothing_is_computed_for_a_client_that_has_gone():
    agent = PointAgent()
    with serving("groot", model=make_model(agent=agent)) as (service, ports):
        agent.go.clear()
        busy = threading.Thread(target=Client(ports["groot"]).act, args=(1,))
        busy.start()
        assert agent.begun.wait(10)
        gone = Client(ports["groot"])
        gone.socket.setsockopt(zmq.RCVTIMEO, 1)
        with pytest.raises(zmq.Again):
            gone.act(2)
        wait_until(lambda: service.model.waiting == 1)
        gone.socket.close()
        wait_until(lambda: service.model.waiting == 0)
        agent.go.set()
        busy.join()
    assert agent.batches == [[1.0]]


def test_nothing_is_built_of_a_message_without_the_token(monkeypatch):
    built = []
    monkeypatch.setattr(groot, "unpack_dict", lambda *given: built.append(given) or unpack_dict(*given))
    with serving("groot", guard=Guard(token="0123456789abcdef")) as (_, ports):
        for token in (None, "wrong", 5, ["0123456789abcdef"]):
            assert "Unauthorized" in Client(ports["groot"], token=token).call("ping", {"a": [{"b": 1}]})["error"]
        assert not built
        assert "status" in Client(ports["groot"], token="0123456789abcdef").call("ping", {"a": [{"b": 1}]})
