"""Extension of griffe: examples in docstrings, which begin with ``>>>``, are shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


class Examples(griffe.Extension):  # type: ignore[misc] # griffe is only in the environment of the docs
    """Puts every example into a fence."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
