"""Whether a fast path may go past a module and compute with its parts."""

from __future__ import annotations

from typing import Any

from keystone.sample.shadow import is_replaced


def may_bypass(*modules: Any) -> bool:
    """Whether these modules do what their classes say, and nobody wants to know: no ``forward`` put onto the object, which is
    how compiled functions and engines get there, and no hook before or behind it.

    >>> from torch import nn
    >>> layer = nn.Linear(2, 2)
    >>> may_bypass(layer)
    True
    >>> hook = layer.register_forward_hook(lambda module, given, output: None)
    >>> may_bypass(layer)
    False
    """
    return not any(
        is_replaced(module, "forward") or module._forward_hooks or module._forward_pre_hooks for module in modules
    )
