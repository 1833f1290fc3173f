"""What a policy computes, seen by the shapes of its tensors and by what the host must wait for."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Shapes(TorchDispatchMode):
    """The shapes of all tensors that come into being."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, Tensor):
                self.seen.add(tuple(one.shape))
        return result


class Waits(TorchDispatchMode):
    """How often the host would wait for a GPU to learn a number: whether, which, how many.

    On a CPU, `Tensor.tolist` asks no operation and is only to be seen as a call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._lists = _Lists(self)

    def __enter__(self) -> "Waits":
        self._lists.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._lists.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masked = func is torch.ops.aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.count += masked or func in (torch.ops.aten.nonzero.default, torch.ops.aten._local_scalar_dense.default)
        return func(*args, **(kwargs or {}))


class _Lists(TorchFunctionMode):
    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._waits.count += func is Tensor.tolist
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """How many operations there are: all but views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aliases = [result.alias_info for result in func._schema.returns if result.alias_info is not None]
        view = any(not alias.is_write for alias in aliases) or func is torch.ops.aten._unsafe_view.default
        self.count += not view
        return func(*args, **(kwargs or {}))
