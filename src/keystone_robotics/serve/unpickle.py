"""Reads pickles from strangers: plain data, numpy arrays, torch tensors on the CPU, and dataclasses that the caller names.

`pickle.loads` imports what the bytes name and calls it. `loads` does neither: it interprets the operations itself, and a
name only selects one of the constructors below. The raw bytes of arrays are checked against their shapes.
"""

from __future__ import annotations

import collections
import enum
import io
import math
import pickletools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve.text import NO_TEXT, is_text

MAX_OPERATIONS = 100_000
"""Pickle operations per message, and values in it. An observation of 3 cameras and 50 joints has about 400."""

MAX_DEPTH = 32
"""Levels of nested containers."""

_PLAIN = (type(None), bool, int, float, str, bytes, bytearray, np.ndarray, np.generic, torch.Tensor, enum.Enum)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
#: Operations whose argument is the value. Numbers of more than 255 bytes (LONG4) are not among them.
_LITERALS = frozenset(
    {
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
        *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
        *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)
_DTYPE = re.compile(r"[biufc]\d{1,2}|[SU][1-9]\d{0,8}")  # no objects, no records, no items of size 0
_STORAGES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C  # first pickle of torch.save's format for single storages
_TORCH_VERSION = 1001


class RefusedPickle(KeystoneError, ValueError):
    """The bytes are no pickle of accepted types."""


@dataclass(frozen=True)
class _Name:
    """A module's attribute that a pickle names. It is never imported."""

    path: str


@dataclass
class _Unbuilt:
    """An object between its creation and BUILD, which brings its state."""

    constructor: str
    args: tuple[Any, ...]
    result: Any = None
    built: bool = False


class _Mark:
    """Start of the items of a container."""


def loads(data: bytes, types: Iterable[type] = (), max_operations: int = MAX_OPERATIONS) -> Any:
    """The object of a pickle of protocol 3 to 5.

    Accepted: None, bool, int, float, str, bytes, list, tuple, dict with keys of str or int; numpy arrays and scalars of
    numbers and text; torch tensors on the CPU; ``types``.

    Args:
        data: the pickle.
        types: dataclasses, which are created with their constructor, and enums.
        max_operations: refuse pickles with more operations, or more values (a value that is referenced twice counts twice).

    Raises:
        RefusedPickle: for anything else. Nothing that the pickle names was imported or called.

    >>> import os, pickle
    >>> loads(pickle.dumps({"state": np.ones(2, np.float32), "task": "push"}))
    {'state': array([1., 1.], dtype=float32), 'task': 'push'}
    >>> loads(pickle.dumps(os.system))
    Traceback (most recent call last):
    keystone_robotics.serve.unpickle.RefusedPickle: the pickle names 'posix.system', which is not accepted: ...
    """
    named = {f"{one.__module__}.{one.__qualname__}": one for one in types}
    reader = _Reader(named, max_operations, max_bytes=2 * len(data))
    try:
        value = reader.read(io.BytesIO(data))
        reader.check(value)
    except RefusedPickle:
        raise
    except Exception as error:  # every failure is one of the bytes: truncated, wrong argument, out of bounds …
        raise RefusedPickle(f"not a valid pickle: {type(error).__name__}: {str(error)[:200]!a}") from None
    return value


class _Reader:
    def __init__(self, types: dict[str, type], max_operations: int, max_bytes: int) -> None:
        self.types = types
        self.max_operations = max_operations
        self.operations = 0
        self.bytes_left = max_bytes  # of arrays: a few operations could copy the same content any number of times
        self.constructors: dict[str, Callable[..., Any]] = {
            "collections.OrderedDict": self._ordered_dict,
            "numpy.dtype": self._unbuilt_dtype,
            "torch._utils._rebuild_tensor_v2": _tensor,
            "torch.storage._load_from_bytes": self._storage,
        }
        for core in ("numpy._core", "numpy.core"):  # numpy 2 and 1
            self.constructors[f"{core}.multiarray._reconstruct"] = self._unbuilt_array
            self.constructors[f"{core}.multiarray.scalar"] = self._scalar
            self.constructors[f"{core}.numeric._frombuffer"] = self._array

    def read(self, stream: io.BytesIO, in_storage: bool = False) -> Any:
        """The object of the next pickle of a stream. ``in_storage``: also accept what torch writes in one."""
        stack: list[Any] = []
        memo: dict[int, Any] = {}
        argument: Any
        for opcode, argument, _ in pickletools.genops(stream):
            self.operations += 1
            if self.operations > self.max_operations:
                raise RefusedPickle(f"the pickle has more than {self.max_operations} operations")
            name = opcode.name
            if name in ("PROTO", "FRAME"):
                continue
            if name == "STOP":
                return _resolved(stack.pop())
            if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in _LITERALS:
                stack.append(argument)
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(_resolved(memo[argument]))
            elif name == "MARK":
                stack.append(_Mark)
            elif name == "EMPTY_LIST":
                stack.append([])
            elif name == "EMPTY_DICT":
                stack.append({})
            elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
                stack.append(tuple(_pop(stack, int(name[-1]))))
            elif name == "TUPLE":
                stack.append(tuple(_pop_to_mark(stack)))
            elif name in ("APPEND", "APPENDS"):
                items = _pop(stack, 1) if name == "APPEND" else _pop_to_mark(stack)
                _container(stack[-1], list).extend(items)
            elif name in ("SETITEM", "SETITEMS"):
                items = _pop(stack, 2) if name == "SETITEM" else _pop_to_mark(stack)
                _set_items(_container(stack[-1], dict), items)
            elif name == "GLOBAL":
                stack.append(self._named(argument.replace(" ", ".", 1), in_storage))
            elif name == "STACK_GLOBAL":
                stack.append(self._named(".".join(_pop(stack, 2)), in_storage))
            elif name in ("REDUCE", "NEWOBJ"):
                called, args = _pop(stack, 2)
                stack.append(self._create(called, args))
            elif name == "BUILD":
                unbuilt, state = _pop(stack, 2, resolve=False)
                stack.append(self._build(unbuilt, _resolved(state)))
            elif name == "BINPERSID" and in_storage:
                continue  # the description of the storage stays on the stack
            else:
                raise RefusedPickle(f"the pickle uses the operation {name}, which is not accepted")
        raise RefusedPickle("the pickle has no end")

    def check(self, value: Any) -> None:
        """Refuse what a consumer may choke on: cycles, deep or huge nesting, and constructors as values."""
        values, left = 0, [(value, 0)]
        while left:
            one, depth = left.pop()
            values += 1
            if values > self.max_operations:
                raise RefusedPickle(f"the pickle has more than {self.max_operations} values, or a cycle")
            if depth > MAX_DEPTH:
                raise RefusedPickle(f"the pickle is nested more than {MAX_DEPTH} levels deep")
            if isinstance(one, dict):
                left.extend((item, depth + 1) for item in one.values())
            elif isinstance(one, (list, tuple)):
                left.extend((item, depth + 1) for item in one)
            elif type(one) in self.types.values() and is_dataclass(one):
                left.extend((getattr(one, field.name), depth + 1) for field in fields(one))
            elif not isinstance(one, _PLAIN):
                what = one.path if isinstance(one, _Name) else type(one).__name__
                raise RefusedPickle(f"the pickle has {what} as a value, which is not accepted")

    def _named(self, path: str, in_storage: bool) -> _Name:
        if (
            path not in self.constructors
            and path not in self.types
            and path != "numpy.ndarray"
            and not (in_storage and path in _STORAGES)
        ):
            raise RefusedPickle(
                f"the pickle names {path[:200]!a}, which is not accepted: expected plain data, numpy arrays, torch tensors"
                + "".join(f", {one.__name__}" for one in self.types.values())
            )
        return _Name(path)

    def _create(self, called: Any, args: Any) -> Any:
        if not isinstance(called, _Name) or not isinstance(args, tuple):
            raise RefusedPickle("the pickle calls something that is not a constructor")
        if called.path in self.constructors:
            return self.constructors[called.path](*args)
        if called.path not in self.types:
            raise RefusedPickle(f"the pickle calls {called.path}, which is not accepted")
        kind = self.types[called.path]
        if issubclass(kind, enum.Enum):
            (member,) = args
            return kind(member) if isinstance(member, (str, int)) else _refuse_enum(kind)
        return _Unbuilt(called.path, args)

    def _build(self, unbuilt: Any, state: Any) -> Any:
        if not isinstance(unbuilt, _Unbuilt) or unbuilt.built:
            raise RefusedPickle(f"the pickle sets the state of a {type(unbuilt).__name__}, which is not accepted")
        if unbuilt.constructor == "numpy.dtype":
            result: Any = _dtype(unbuilt.args[0], state)
        elif unbuilt.constructor == "numpy.ndarray":
            _, shape, dtype, fortran, content = state
            result = self._array(content, dtype, shape, "F" if fortran else "C")
        else:
            result = self.types[unbuilt.constructor](**state)
        unbuilt.result, unbuilt.built = result, True
        return result

    @staticmethod
    def _ordered_dict() -> dict[Any, Any]:
        return collections.OrderedDict()

    @staticmethod
    def _unbuilt_dtype(name: str, align: bool, copy: bool) -> _Unbuilt:
        return _Unbuilt("numpy.dtype", (name,))

    @staticmethod
    def _unbuilt_array(kind: Any, shape: Any, dtype: Any) -> _Unbuilt:
        if kind != _Name("numpy.ndarray"):
            raise RefusedPickle("the pickle has a subclass of numpy.ndarray, which is not accepted")
        return _Unbuilt("numpy.ndarray", ())

    def _storage(self, content: bytes) -> torch.Tensor:
        """A flat tensor from what `torch.save` wrote for one storage: five pickles, the length, the elements."""
        stream = io.BytesIO(content)
        magic, version, _, description, (key,) = (self.read(stream, in_storage=True) for _ in range(5))
        kind, storage, its_key, device, elements, view = description
        if (magic, version, kind, device, view, key) != (
            _TORCH_MAGIC, _TORCH_VERSION, "storage", "cpu", None, its_key,
        ):  # fmt: skip
            raise RefusedPickle("the pickle has a tensor that is not a plain one on the CPU")
        dtype = _STORAGES[storage.path]
        length, raw = int.from_bytes(stream.read(8), "little"), bytearray(stream.read())
        self._spend(raw)
        if not length == elements == len(raw) / dtype.itemsize:
            raise RefusedPickle(f"the pickle has a storage of {elements} elements in {len(raw)} bytes")
        return torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)

    def _array(
        self, content: bytes | bytearray, dtype: np.dtype[Any], shape: tuple[int, ...], order: str
    ) -> np.ndarray[Any, Any]:
        """A writable array over a copy of the content (over the content itself if it is writable)."""
        if not (
            isinstance(content, (bytes, bytearray))
            and isinstance(dtype, np.dtype)
            and isinstance(shape, tuple)
            and all(isinstance(size, int) and size >= 0 for size in shape)
            and math.prod(shape) * dtype.itemsize == len(content)
        ):
            raise RefusedPickle("the pickle has an array whose shape does not match its content")
        if not is_text(content, dtype):
            raise RefusedPickle(f"the pickle has {NO_TEXT}")
        self._spend(content)
        buffer = content if isinstance(content, bytearray) else bytearray(content)
        return np.ndarray(shape, dtype, buffer, order="F" if order == "F" else "C")

    def _scalar(self, dtype: np.dtype[Any], content: bytes) -> Any:
        return self._array(content, dtype, (1,), "C")[0]

    def _spend(self, content: bytes | bytearray) -> None:
        self.bytes_left -= len(content)
        if self.bytes_left < 0:
            raise RefusedPickle("the pickle has arrays of more bytes than itself")


def _refuse_enum(kind: type) -> Any:
    raise RefusedPickle(f"the pickle has a {kind.__name__} whose value is not text or a number")


def _resolved(value: Any) -> Any:
    """The object for what may have been unbuilt when it was stored."""
    if isinstance(value, _Unbuilt):
        if not value.built:
            raise RefusedPickle(f"the pickle uses a {value.constructor} before it has a state")
        return value.result
    return value


def _pop(stack: list[Any], count: int, resolve: bool = True) -> list[Any]:
    if len(stack) < count:
        raise RefusedPickle("the pickle takes more values than it has")
    items = stack[-count:]
    del stack[-count:]
    return [_resolved(item) for item in items] if resolve else items


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    items: list[Any] = []
    while (item := stack.pop()) is not _Mark:
        items.append(_resolved(item))
    return items[::-1]


def _container(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise RefusedPickle(f"the pickle adds items to a {type(value).__name__}, not to a {kind.__name__}")
    return value


def _set_items(target: dict[Any, Any], items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        # The hash of nested tuples takes exponential time, and large numbers can be chosen to have the same hash.
        if not (isinstance(key, str) or (isinstance(key, int) and abs(key) < 2**31)):
            raise RefusedPickle(
                f"the pickle has a dict with a key of type {type(key).__name__}: expected str or a small int"
            )
        target[key] = value


def _dtype(name: str, state: tuple[Any, ...]) -> np.dtype[Any]:
    """A data type of numbers or text. numpy's own `__setstate__` trusts the state, so that it is not called."""
    order, records = state[1], state[2:5]
    if not isinstance(name, str) or not _DTYPE.fullmatch(name) or any(one is not None for one in records):
        raise RefusedPickle(f"the pickle has an array of {str(name)[:50]!a}: expected numbers or text")
    return np.dtype(name) if order == "|" else np.dtype(name).newbyteorder(order)


def _tensor(
    storage: torch.Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool, hooks: Any
) -> torch.Tensor:
    """A view of a storage; torch checks that it is inside."""
    if hooks or not isinstance(storage, torch.Tensor) or math.prod(size) > storage.numel():
        raise RefusedPickle("the pickle has a tensor with hooks, or with more elements than its storage")
    return storage.as_strided(size, stride, offset).requires_grad_(bool(requires_grad))
