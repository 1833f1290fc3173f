"""What K costs here: latency and memory of a round against K, measured, and the largest K worth having."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keystone_robotics.profiling.api import profile
    from keystone_robotics.profiling.result import Cost, Profile

__all__ = ["Cost", "Profile", "profile"]

#: Imported when first used: `arguments` is checked before torch is imported.
_LAZY = {"Cost": "result", "Profile": "result", "profile": "api"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
