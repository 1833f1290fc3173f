"""MessagePack with numpy arrays, as openpi, StarVLA and GR00T write them. No pickle; sizes are checked before they are used."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from keystone_robotics.serve.messages import Refused
from keystone_robotics.serve.text import NO_TEXT, is_text

#: Values in a message, apart from the numbers in arrays: 64 MB of empty lists would take 4 GB.
MOST_VALUES = 1_000_000
#: Arrays in a message: each takes some 30 µs to build, however small it is.
MOST_ARRAYS = 1000
REPLY = "the policy's reply"
_DTYPE = re.compile(r"[<>|=]?([biuf]\d{1,2}|[SU]\d{1,9})")  # no objects, no records


def unpack(message: bytes) -> Any:
    """The value of a message. Arrays in the formats of openpi, GR00T (``.npy``) and msgpack-numpy.

    Raises:
        Refused: if it is anything else.

    >>> unpack(pack_openpi({"state": np.arange(3)}))
    {'state': array([0, 1, 2])}
    """
    left, left_arrays = MOST_VALUES, MOST_ARRAYS

    def count(values: Any) -> Any:
        nonlocal left
        left -= len(values) + 1
        if left < 0:
            raise Refused("message", f"the message has more than {MOST_VALUES} values")
        return values

    def build(found: dict[Any, Any]) -> Any:
        nonlocal left_arrays
        value = _array(count(found))
        left_arrays -= value is not found
        if left_arrays < 0:
            raise Refused("message", f"the message has more than {MOST_ARRAYS} arrays")
        return value

    try:
        return msgpack.unpackb(
            message, object_hook=build, list_hook=count,
            max_array_len=MOST_VALUES, max_map_len=10_000, max_ext_len=0,
        )  # fmt: skip
    except Refused:
        raise
    except Exception as error:  # every failure is one of the bytes
        raise Refused("message", f"not a valid message: {type(error).__name__}: {str(error)[:200]!a}") from None


def unpack_dict(message: bytes, expected: str) -> dict[Any, Any]:
    """The same of a message that is a dict; a refusal says what was expected."""
    value = unpack(message)
    if not isinstance(value, dict):
        raise Refused("message", f"the message is a {type(value).__name__}: expected {expected}")
    return value


def peek(message: bytes, key: str) -> Any:
    """The value of a key of a message, without building the others; None if it is no text or not there.

    >>> peek(msgpack.packb({"data": [1, 2], "api_token": "abc"}), "api_token")
    'abc'
    """
    reader = msgpack.Unpacker(max_buffer_size=len(message), max_array_len=0, max_map_len=0, max_ext_len=0)
    try:
        reader.feed(message)
        for _ in range(reader.read_map_header()):
            name = reader.unpack()
            if name == key:
                value = reader.unpack()
                return value if isinstance(value, str) else None
            reader.skip()
    except Exception:  # `unpack` says what is wrong
        return None
    return None


def _array(found: dict[Any, Any]) -> Any:
    def get(key: str) -> Any:
        return found.get(key.encode(), found.get(key))

    if get("__ndarray__"):
        return _from_bytes(get("data"), get("dtype"), get("shape"))
    if get("__npgeneric__"):
        return _scalar(get("data"), get("dtype"))
    if get("__ndarray_class__"):
        return _from_npy(get("as_npy"))
    if get("nd") is not None and get("type") is not None:
        return _from_bytes(get("data"), get("type"), get("shape") or ())
    return found


def _dtype(name: Any) -> np.dtype[Any]:
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    if not isinstance(text, str) or not _DTYPE.fullmatch(text):
        raise Refused("message", f"the message has an array of {str(name)[:50]!a}: expected numbers or text")
    return np.dtype(text)


def _scalar(value: Any, dtype: Any) -> Any:
    kind = _dtype(dtype)
    if kind.kind not in "biuf" or not isinstance(value, (bool, int, float)):  # text may claim any width
        raise Refused("message", "the message has a numpy scalar that is not a number")
    return np.asarray(value, kind)[()]


def _from_bytes(data: Any, dtype: Any, shape: Any) -> np.ndarray[Any, Any]:
    kind = _dtype(dtype)
    sizes = tuple(shape) if isinstance(shape, (list, tuple)) else None
    if (
        sizes is None
        or len(sizes) > 8
        or not isinstance(data, bytes)
        or not all(isinstance(size, int) and 0 <= size <= len(data) for size in sizes)
        or not kind.itemsize
        or math.prod(sizes) * kind.itemsize != len(data)
    ):
        raise Refused("message", "the message has an array whose shape does not match its content")
    if not is_text(data, kind):
        raise Refused("message", f"the message has {NO_TEXT}")
    return np.frombuffer(data, kind).reshape(sizes)


def _from_npy(content: Any) -> np.ndarray[Any, Any]:
    """What `numpy.save` wrote; not read by numpy, which would allocate what the header claims."""
    npy: Any = np.lib.format
    stream = io.BytesIO(content)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(stream)]
    shape, fortran, dtype = read(stream)
    sizes = shape[::-1] if fortran else shape
    array = _from_bytes(stream.read(), dtype.str, sizes)
    return array.T if fortran else array


def _packed(value: Any, array: Callable[[np.ndarray[Any, Any]], Any], what: str = REPLY) -> bytes:
    def default(other: Any) -> Any:
        if isinstance(other, np.ndarray):
            if other.dtype.kind not in "biufSU":  # objects would be sent as the addresses of this process
                raise TypeError(f"an array of {other.dtype} cannot be sent")
            return array(other)
        if isinstance(other, np.generic):
            return other.item()
        raise TypeError(f"a {type(other).__name__} cannot be sent")

    try:
        packed: bytes = msgpack.packb(value, default=default)
    except (TypeError, ValueError, OverflowError) as error:
        raise Refused("model", f"{what} cannot be sent: {error}") from None
    return packed


def pack_openpi(value: Any, what: str = REPLY) -> bytes:
    """With arrays as openpi's and StarVLA's clients read them; a refusal says what cannot be sent."""
    return _packed(
        value,
        lambda array: {
            b"__ndarray__": True,
            b"data": array.tobytes(),
            b"dtype": array.dtype.str,
            b"shape": array.shape,
        },
        what,
    )


def pack_groot(value: Any) -> bytes:
    """With arrays as all GR00T clients read them, N1.5 to N1.7."""

    def npy(array: np.ndarray[Any, Any]) -> dict[str, Any]:
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": content.getvalue()}

    return _packed(value, npy)
