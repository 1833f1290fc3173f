"""What an unknown method leaves behind on the objects of a policy: seen, compared and undone."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from keystone_robotics.sample.kit.jax_arrays import is_array, is_tracer

#: Never looked into: code, and what holds no state of a policy.
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, Tensor, np.ndarray)


@dataclass
class ObjectState:
    """The attributes, lists and dicts of an object and of all it holds, as they were; tensors are not copied.

    >>> policy = types.SimpleNamespace(history=[1], count=0)
    >>> before = ObjectState.of(policy)
    >>> policy.history.append(2)
    >>> policy.count += 1
    >>> before.restore()
    >>> policy
    namespace(history=[1], count=0)
    """

    #: (attribute path, the container itself, its contents)
    parts: list[tuple[str, Any, Any]]

    @classmethod
    def of(cls, root: Any) -> ObjectState:
        """KeyStone's own attributes are left out."""
        parts: list[tuple[str, Any, Any]] = []
        seen: set[int] = set()
        queue: deque[tuple[str, Any]] = deque([("", root)])
        while queue:
            path, value = queue.popleft()
            if id(value) in seen or isinstance(value, _OPAQUE) or is_array(value):
                continue
            seen.add(id(value))
            own = value if isinstance(value, (dict, list, deque, tuple)) else getattr(value, "__dict__", None)
            if own is None:
                continue
            seen.add(id(own))
            parts.append((path, own, own if isinstance(own, tuple) else own.copy()))
            queue.extend(_entries(path, own))
        return cls(parts)

    def restore(self) -> None:
        """Put the contents back, where they have changed."""
        for _, container, contents in self.parts:
            if _same(container, contents):
                continue
            container.clear()
            container.update(contents) if isinstance(container, dict) else container.extend(contents)

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """The tensors and arrays, of numpy or JAX, by attribute path: ``model.history[3]``."""
        for path, _, contents in self.parts:
            for name, value in _entries(path, contents):
                if isinstance(value, (Tensor, np.ndarray)) or is_array(value):
                    yield name, value

    def leaked(self) -> str:
        """The first attribute that holds a tensor of ``torch.vmap`` or a tracer of JAX, of no use outside of it; else empty."""
        return next((name for name, value in self.tensors() if _is_traced(value)), "")

    def other_shape(self, other: ObjectState) -> str:
        """The first attribute whose shape is another one in the other state, with both shapes; else empty."""
        shapes = {name: tuple(value.shape) for name, value in other.tensors()}
        for name, value in self.tensors():
            if shapes.get(name, tuple(value.shape)) != tuple(value.shape):
                return f"{name} has shape {tuple(value.shape)}, and {shapes[name]}"
        return ""


def _is_traced(value: Any) -> bool:
    return is_batchedtensor(value) if isinstance(value, Tensor) else is_tracer(value)


def _entries(path: str, container: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(container, Mapping):
        yield from ((f"{path}[{index}]", value) for index, value in enumerate(container))
        return
    for name, value in container.items():
        if name in ("_modules", "_buffers", "_parameters") and isinstance(value, dict):
            # Modules have names of their own there.
            yield from ((f"{path}.{inner}".lstrip("."), one) for inner, one in value.items())
        if name != "_keystone":
            yield f"{path}.{name}".lstrip("."), value


def _same(container: Any, contents: Any) -> bool:
    if len(container) != len(contents):
        return False
    if isinstance(container, dict):
        return all(name in container and container[name] is value for name, value in contents.items())
    return all(one is other for one, other in zip(container, contents, strict=True))
