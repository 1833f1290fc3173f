"""What is meant where nothing is said, and how options are read from text."""

from __future__ import annotations

import json
from typing import Any

DEFAULT_K = 16
DEFAULT_RULE = "keystone"  #: the paper's
#: The rule with the highest rates in docs/study.md; new policies may do better with one cooled sample.
RECOMMENDED_RULE = "core-mean"


def parse_params(text: str) -> dict[str, Any]:
    """Parameters of a rule from JSON or a comma-separated list; a value that is not JSON is a string.

    >>> parse_params('{"tau": 0.5}'), parse_params("init=best,clusters=3")
    ({'tau': 0.5}, {'init': 'best', 'clusters': 3})
    """
    if text.startswith("{"):
        return dict(json.loads(text))
    params = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise ValueError(f"{part!r} is not name=value")
        try:
            params[name] = json.loads(value)
        except json.JSONDecodeError:
            params[name] = value
    return params
