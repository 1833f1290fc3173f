"""StarVLA's client on the wire: openpi's arrays, ``{type, request_id, payload}`` or the payload alone."""

import numpy as np
import pytest
from openpi_client import msgpack_numpy
from serving import serving, state
from test_serve_openpi import expected_chunk
from websockets.sync.client import connect


@pytest.fixture(scope="module")
def server():
    with serving("starvla") as (_, ports):
        yield ports["starvla"]


@pytest.fixture
def ask(server):
    with connect(f"ws://127.0.0.1:{server}", compression=None, max_size=None) as connection:
        assert msgpack_numpy.unpackb(connection.recv())["env"] == "keystone"

        def ask(message):
            connection.send(msgpack_numpy.packb(message))
            return msgpack_numpy.unpackb(connection.recv())

        yield ask


def test_examples_are_answered_together(ask):
    examples = [{"image": [], "lang": "push", "state": state(number)[None]} for number in (1, 2)]
    reply = ask({"examples": examples, "do_sample": False})
    assert (reply["status"], reply["ok"], reply["type"]) == ("ok", True, "inference_result")
    assert reply["data"]["actions"].shape == (2, 6, 2)
    one = ask({"type": "infer", "request_id": "7", "payload": {"examples": examples[:1], "keystone_seed": 5}})
    assert one["request_id"] == "7"
    np.testing.assert_allclose(one["data"]["actions"][0], expected_chunk((1,), 5), rtol=1e-5, atol=1e-6)
    assert one["data"]["keystone"][0]["k"] == 8


def test_errors_are_words_and_the_connection_goes_on(ask):
    assert ask({"type": "ping", "request_id": "1"})["ok"]
    for message, words in (
        ({"type": "dance"}, "expected infer, ping or reset"),
        ({"payload": {"examples": "none"}}, "expected a list of dicts"),
        ({"examples": [{"image": [np.zeros((4, 4, 3), np.uint8)], "state": state(1)}]}, "has 1 images"),
        ({"examples": [{"state": state(1)}] * 100}, "100 robots in a message"),
        ({"examples": [{"state": state(500)}]}, "out of reach"),
        ({"examples": [{"state": [1.0, [2.0]]}]}, "expected numbers"),
        ({"type": state(1), "examples": []}, "type 'ndarray': expected infer"),
    ):
        reply = ask(message)
        assert not reply["ok"]
        assert words in reply["error"]["message"]
    assert ask({"type": "reset"})["ok"]
