"""KeyStone: draw K action chunks from one shared context, execute the one they agree on.

>>> import numpy as np, keystone_robotics as keystone
>>> left, right = np.full((11, 16, 7), -1.0), np.full((5, 16, 7), 1.0)      # two ways around an obstacle
>>> candidates = np.concatenate([left, right]) + 0.1 * np.random.default_rng(0).normal(size=(16, 16, 7))
>>> selection = keystone.select(candidates)
>>> selection.sizes.tolist(), bool(selection.chunk.mean() < 0)              # eleven votes to five: left
([11, 5], True)
"""

import importlib
from typing import TYPE_CHECKING, Any

from keystone_robotics._version import __version__
from keystone_robotics.errors import KeystoneError, NoValidCandidate
from keystone_robotics.named import factory
from keystone_robotics.select import (
    RULES,
    ActionSpace,
    Round,
    RuleResult,
    Scored,
    Selection,
    select,
)
from keystone_robotics.spec import Spec

if TYPE_CHECKING:
    from keystone_robotics import reducers
    from keystone_robotics.attachment import attach, attached, detach
    from keystone_robotics.handle import Handle, RoundEvent
    from keystone_robotics.monitor import Alarm
    from keystone_robotics.profiling import Profile, profile
    from keystone_robotics.view import RerunLog

__all__ = [
    "RULES",
    "ActionSpace",
    "Alarm",
    "Handle",
    "KeystoneError",
    "NoValidCandidate",
    "Profile",
    "RerunLog",
    "Round",
    "RoundEvent",
    "RuleResult",
    "Scored",
    "Selection",
    "Spec",
    "__version__",
    "attach",
    "attached",
    "detach",
    "factory",
    "profile",
    "reducers",
    "select",
]

#: Names whose modules import torch, which takes seconds: they are imported when first used. No name may be a module's too.
_LAZY = {
    **dict.fromkeys(("attach", "attached", "detach"), "attachment"),
    **dict.fromkeys(("Handle", "RoundEvent"), "handle"),
    "Alarm": "monitor",
    **dict.fromkeys(("Profile", "profile"), "profiling"),
    "RerunLog": "view",
}


def __getattr__(name: str) -> Any:
    if name == "reducers":
        return importlib.import_module(f"{__name__}.reducers")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
