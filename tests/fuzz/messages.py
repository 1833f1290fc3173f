"""Messages of robots' clients, bytes changed, values replaced: each gets an answer or a refusal, honest robots theirs."""

from __future__ import annotations

import asyncio
import functools
import io
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import msgpack
import numpy as np

from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve.messages import Refused
from keystone_robotics.serve.protocols import groot, openpi, roboarena, starvla
from keystone_robotics.serve.protocols.arrays import pack_openpi
from keystone_robotics.serve.service import Client, Service

#: Messages of a case, all of them in the queue at once, and robots that send what they should meanwhile.
MESSAGES, HONEST = 100, 4
STATE = "environment_state"

Send = Callable[[Service, Client, bytes], Coroutine[Any, Any, object]]


@functools.cache
def _server() -> tuple[asyncio.AbstractEventLoop, Service, list[Any]]:
    """A small policy, and the chunks that the honest robots are to get."""
    from serve.serving import make_model

    service, loop = Service(make_model("core-mean:k=2")), asyncio.new_event_loop()
    service.model.start()
    honest = _honest(service)
    return loop, service, [one.actions for one in loop.run_until_complete(asyncio.wait_for(honest, 60))]


async def _honest(service: Service) -> list[Any]:
    asks = (
        service.act(Client(f"honest-{number}"), {STATE: np.full(3, number, np.float32)}, seed=number)
        for number in range(HONEST)
    )
    return await asyncio.gather(*asks)


def _attack(send: Send, messages: list[bytes]) -> int:
    loop, service, expected = _server()

    async def strange(message: bytes) -> None:
        with service.connected("fuzz") as client:
            answer = await send(service, client, message)
            assert answer is None or isinstance(answer, (bytes, str)), f"{message!r} was answered with {answer!r}"

    async def all_at_once() -> list[Any]:
        _, *honest = await asyncio.gather(
            asyncio.gather(*map(strange, messages[::2])),
            _honest(service),
            asyncio.gather(*map(strange, messages[1::2])),
        )
        return honest[0]

    service.guard = service.guard.__class__(max_connections=2 * len(messages))
    replies = loop.run_until_complete(asyncio.wait_for(all_at_once(), 120))
    for reply, actions in zip(replies, expected, strict=True):
        np.testing.assert_allclose(reply.actions, actions, atol=1e-4, err_msg="a wrong reply to an honest robot")
    assert service.connections == service.acting == service.model.waiting == 0
    return len(messages)


def _strange_value(rng: np.random.Generator) -> Any:
    """A value that nobody expects at its place."""
    shape = tuple(int(size) for size in rng.integers(0, 4, rng.integers(0, 5)))
    values: list[Callable[[], Any]] = [
        lambda: None, lambda: bool(rng.integers(2)), lambda: int(rng.integers(-(2**62), 2**62)), lambda: 2**64 - 1,
        lambda: float(rng.choice([np.nan, np.inf, -np.inf, 0.0, 1e308, -1e-308])), lambda: "\0\n\u202e" * 3, lambda: "x" * 5000,
        lambda: rng.bytes(int(rng.integers(0, 50))), list, dict, lambda: [[[[0]]]], lambda: {"a": {"b": []}},
        lambda: rng.normal(size=shape).astype(rng.choice(["f2", "f4", "f8"])), lambda: rng.normal(size=3).astype("f4"),
        lambda: np.zeros(shape, rng.choice(["u1", "i8", "?", "U3", "S5"])), lambda: np.float32(np.nan), lambda: np.int64(-1),
        lambda: np.full(3, np.inf), lambda: np.zeros((2, 2, 3), np.uint8),
    ]  # fmt: skip
    return values[rng.integers(len(values))]()


def _changed(value: Any, rng: np.random.Generator) -> Any:
    """A message with a value replaced, removed, added or renamed somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key, found = list(value)[rng.integers(len(value))], dict(value)
        kind = rng.integers(8)
        if kind == 0:
            del found[key]
        elif kind == 1:
            found[str(_strange_value(rng))[:100]] = _strange_value(rng)
        elif kind == 2:
            found[f"keystone_{rng.choice(['seed', 'episode', 'deadline_ms', 'time'])}"] = _strange_value(rng)
        elif kind == 3:
            found[[7, b"x", "", "endpoint", "type", "task"][rng.integers(6)]] = found.pop(key)
        else:
            found[key] = _changed(value[key], rng)
        return found
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = int(rng.integers(len(value)))
        return value[:at] + [_changed(value[at], rng)] * int(rng.integers(0, 3)) + value[at + 1 :]
    return _strange_value(rng)


def _mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Bytes changed, cut, repeated or inserted."""
    found = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at, size = int(rng.integers(len(found) + 1)), int(rng.integers(1, 65))
        kind = rng.integers(4)
        if kind == 0 and at < len(found):
            found[at] = rng.integers(256)
        elif kind == 1:
            del found[at : at + size]
        elif kind == 2:
            found[at:at] = found[at : at + size]
        else:
            found[at:at] = rng.bytes(1 + size // 8)
    return bytes(found)


def _messages(good: list[Any], pack: Callable[[Any], bytes], rng: np.random.Generator) -> list[bytes]:
    made = []
    for number in range(MESSAGES):
        message = good[rng.integers(len(good))]
        for _ in range(rng.integers(0, 4)):
            message = _changed(message, rng)
        try:
            data = pack(message)
        except (TypeError, ValueError, OverflowError):  # what cannot be sent
            data = pack(good[0])
        made.append(_mutated(data, rng) if number % 2 else data)
    return made


async def _on_websocket(protocol: Any, service: Service, client: Client, message: bytes) -> object:
    try:
        return await protocol.answer(service, client, protocol.read(service, message))
    except Refused as refusal:
        return str(refusal)


async def _on_zmtp(service: Service, client: Client, message: bytes) -> object:
    try:
        return await groot.answer(service, client, groot.read(service, message))
    except Refused as refusal:
        return groot.refuse(refusal)


async def _on_grpc(service: Service, client: Client, message: bytes) -> object:
    from keystone_robotics.serve.protocols import lerobot_messages as lerobot

    try:
        instructions = lerobot.read_instructions(message[2:] if message[:2] == b"I:" else _instructions())
        observation = lerobot.read_observation(message[2:] if message[:2] == b"O:" else _observation())
        inputs, task = lerobot.frame(observation, instructions, service.model.interface.inputs)
        await service.act(client, inputs, task=task, observed_at=observation.timestamp)
    except KeystoneError as error:
        return str(error)
    return None


@functools.cache
def _instructions() -> bytes:
    return pickle.dumps(_good_instructions())


def _good_instructions(features: Any = None, rename: Any = None, most: Any = 4) -> Any:
    from lerobot.async_inference.helpers import RemotePolicyConfig

    features = features or {"observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]}}
    return RemotePolicyConfig("point", "point", features, most, "cpu", rename or {"observation.state": STATE})


@functools.cache
def _observation() -> bytes:
    from lerobot.async_inference.helpers import TimedObservation

    return pickle.dumps(TimedObservation(0.0, 0, {"a": 1.0, "b": 2.0, "c": np.float32(3), "task": "push"}, True))


def attack_openpi(rng: np.random.Generator) -> int:
    """openpi's observations."""
    good = [{STATE: np.ones(3, np.float32), "prompt": "push", "keystone_seed": 1}]
    return _attack(functools.partial(_on_websocket, openpi), _messages(good, pack_openpi, rng))


def attack_roboarena(rng: np.random.Generator) -> int:
    """RoboArena's, with an endpoint."""
    good = [{"endpoint": "infer", STATE: np.ones(3, np.float32), "session_id": "a"}, {"endpoint": "reset"}]
    return _attack(functools.partial(_on_websocket, roboarena), _messages(good, pack_openpi, rng))


def attack_starvla(rng: np.random.Generator) -> int:
    """StarVLA's envelopes, and its examples alone."""
    examples = [{"image": [], "lang": "push", "state": np.ones((1, 3), np.float32)} for _ in range(2)]
    good = [{"type": "infer", "request_id": "1", "payload": {"examples": examples}}, {"examples": examples}]
    good += [{"type": "reset", "request_id": "2", "payload": {}}, {"type": "ping"}]
    return _attack(functools.partial(_on_websocket, starvla), _messages(good, pack_openpi, rng))


def attack_groot(rng: np.random.Generator) -> int:
    """The messages of N1.5 to N1.7, in both formats of arrays."""
    states = {"joints": np.ones((2, 1, 3), np.float32)}
    good = [
        {"endpoint": "get_action", "data": {"observation": {"state": states, "language": {"task": [["push"]]}}, "options": {}}},
        {"endpoint": "get_action", "data": {"state.joints": np.ones((1, 3), np.float32), "annotation.human.task": ["push"]}},
        {"endpoint": "reset", "data": {"options": None}}, {"endpoint": "get_modality_config"},
    ]  # fmt: skip

    def as_npy(array: np.ndarray[Any, Any]) -> dict[str, Any]:
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": content.getvalue()}

    def as_msgpack_numpy(array: np.ndarray[Any, Any]) -> dict[bytes, Any]:
        return {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape, b"data": array.tobytes()}

    encode = (as_npy, as_msgpack_numpy)[rng.integers(2)]

    def default(value: Any) -> Any:
        return encode(value) if isinstance(value, np.ndarray) else value.item()

    return _attack(_on_zmtp, _messages(good, lambda value: msgpack.packb(value, default=default), rng))


def attack_lerobot(rng: np.random.Generator) -> int:
    """The pickles of LeRobot's robot client: instructions and observations."""
    from lerobot.async_inference.helpers import TimedObservation

    feature = {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]}
    good = [
        {"kind": "O", "time": 0.0, "step": 0, "raw": {"a": 1.0, "b": 2.0, "c": np.float32(3), "task": "push"}, "go": True},
        {"kind": "I", "features": {"observation.state": feature}, "rename": {"observation.state": STATE}, "most": 4},
    ]  # fmt: skip

    def pack(value: Any) -> bytes:
        def get(key: str) -> Any:
            return value.get(key) if isinstance(value, dict) else value

        if isinstance(value, dict) and value.get("kind") == "I":
            return b"I:" + pickle.dumps(_good_instructions(get("features"), get("rename"), get("most")))
        return b"O:" + pickle.dumps(TimedObservation(get("time"), get("step"), get("raw"), get("go")))

    messages = _messages(good, pack, rng)
    return _attack(_on_grpc, [one if one[:2] in (b"O:", b"I:") else b"O:" + one for one in messages])
