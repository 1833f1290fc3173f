"""What a policy computes, seen by the shapes of its tensors and by what the host must wait for."""

from typing import Any

import torch
from torch import Tensor
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
    """How often the host would wait for a GPU to learn how many numbers are left."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.nonzero.default
        return func(*args, **(kwargs or {}))
