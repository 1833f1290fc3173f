"""Values of options: read from text, checked, and written as text."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, NamedTuple

from keystone_robotics.errors import nearest_name
from keystone_robotics.select import ActionSpace
from keystone_robotics.select.agreement import AdaptiveRange
from keystone_robotics.select.engine import check_seed
from keystone_robotics.select.metrics import check_metric
from keystone_robotics.select.rules import RULES, Rule, bind
from keystone_robotics.select.rules.checks import number, whole

WINDOWS = ("executed", "chunk")

#: Returns the value as it is stored, or raises ValueError or TypeError with the text ``name=value: expected …``.
Check = Callable[[str, Any], Any]


class Option(NamedTuple):
    """One thing that can be set.

    Attributes:
        help: one line, for ``--help``.
        check: of a value.
        read: a value from text.
    """

    help: str
    check: Check
    read: Callable[[str], Any]


def read_value(text: str) -> Any:
    """JSON, another spelling of a number, or the text itself.

    >>> read_value("0.5"), read_value(".5"), read_value("null"), read_value("best")
    (0.5, 0.5, None, 'best')
    """
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    with contextlib.suppress(ValueError):
        return float(text)
    return text


def read_flag(text: str) -> Any:
    """True or False from a word; other text as it is.

    >>> read_flag("1"), read_flag("No"), read_flag("maybe")
    (True, False, 'maybe')
    """
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    return words.get(text.lower(), text)


def read_params(text: str) -> dict[str, Any]:
    """Parameters of a rule from JSON or a comma-separated list.

    >>> read_params('{"tau": 0.5}'), read_params("init=best,clusters=3")
    ({'tau': 0.5}, {'init': 'best', 'clusters': 3})
    """
    return {name: read_value(value) if isinstance(value, str) else value for name, value in read_items(text).items()}


def read_items(text: str) -> dict[str, Any]:
    """Texts by name from ``name=value,…``, values from JSON; commas inside brackets and quotes do not separate.

    >>> read_items('k=4, space={"dims": [0, 1]}')
    {'k': '4', 'space': '{"dims": [0, 1]}'}
    """
    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except RecursionError:
            raise ValueError("nested too deeply") from None
    items: dict[str, str] = {}
    for part in _split(text):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise ValueError(f"{part!r} is not name=value")
        if name in items:
            raise ValueError(f"{name} is given twice: {items[name]} and {value}")
        items[name] = value
    return items


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for piece in re.findall(r'"(?:[^"\\]|\\.)*"?|.', text, re.DOTALL):
        depth += (piece in "[{") - (piece in "]}")
        if piece == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def write_value(value: Any) -> str:
    """The shortest text that `read_value` takes for the value, and that no comma or bracket tears apart."""
    plain = isinstance(value, str) and re.fullmatch(r"[\w.+:-]+", value) and read_value(value) == value
    return value if plain else json.dumps(value, separators=(",", ":"))


def check_rule(name: str, value: Any) -> Any:
    """The name of a rule, or a rule that has none. Functions are checked with their parameters."""
    if isinstance(value, type) and value in RULES.values():
        return value.name  # type: ignore[attr-defined]
    if not callable(value) or isinstance(value, Rule):
        bind(value, {})
    return value


def check_k(name: str, value: Any) -> Any:
    """A number of candidates, "auto", or a range of which the candidates' agreement decides, as its shortest text.

    >>> check_k("k", "4..16:0.50")
    '4..16'
    """
    if value is None or (isinstance(value, str) and value == "auto"):
        return value
    if isinstance(value, str):
        span = _read_range(name, value)
        if span is None or span.most is None:
            raise ValueError(f'{name}={value!r}: expected a whole number, "auto", or a range such as 4..16')
        if span.least == 1:
            raise ValueError(
                f"{name}={value!r}: one candidate cannot disagree; expected a range that begins with 2 or more"
            )
        return str(span)
    whole(name, value)
    return int(value)


def check_temperature(name: str, value: Any) -> float:
    """A finite number that is not negative."""
    number(name, value)
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}={value!r}: expected a finite number, 0 or more")
    return float(value)


def check_noise_seed(name: str, value: Any) -> int | None:
    """A whole number."""
    return None if value is None else check_seed(value)


def check_distance(name: str, value: Any) -> Any:
    """The name of a metric."""
    check_metric(value)
    return value


def check_window(name: str, value: Any) -> Any:
    """One of `WINDOWS`."""
    if value not in WINDOWS:
        raise ValueError(f"{name}={value!r}: {nearest_name(value, WINDOWS)}")
    return value


def check_count(name: str, value: Any, least: int = 1) -> int | None:
    """A whole number, 1 or more."""
    if value is None:
        return None
    whole(name, value, least)
    return int(value)


def check_execute(name: str, value: Any) -> Any:
    """A whole number, or "auto" or a range of which the candidates' agreement decides, as its shortest text.

    >>> check_execute("execute", "auto:0.1"), check_execute("execute", "2..8")
    ('auto:0.1', '2..8')
    """
    if not isinstance(value, str):
        return check_count(name, value)
    span = _read_range(name, value)
    if span is None:
        raise ValueError(f'{name}={value!r}: expected a whole number, "auto", or a range such as 2..8')
    return str(span)


def _read_range(name: str, value: str) -> AdaptiveRange | None:
    try:
        return AdaptiveRange.parse(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r}: {error}") from None


def check_dimension(name: str, value: Any) -> int | None:
    """A whole number, 0 or more."""
    return check_count(name, value, least=0)


def check_flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: expected True or False")
    return value


def check_space(name: str, value: Any) -> ActionSpace | None:
    """An `ActionSpace`, also from a mapping of its arguments: dimensions may be texts there, as in JSON, and so may slices.

    >>> check_space("space", {"dims": 7, "steps": "1:9", "gripper": {"6": "logit"}})
    ActionSpace(dims=7, steps=slice(1, 9, None), scale=None, rotation=None, gripper={6: 'logit'})
    """
    if isinstance(value, Mapping):
        known = [one.name for one in fields(ActionSpace)]
        for key in value:
            if key not in known:
                raise ValueError(f"{name} has no {key!r}: {nearest_name(key, known)}")
        value = ActionSpace(**{key: _read_indices(item) for key, item in value.items()})
    if value is None:
        return None
    if not isinstance(value, ActionSpace):
        raise TypeError(
            f'{name}={value!r}: expected an ActionSpace, or its arguments such as {{"dims": 7, "steps": 8}}'
        )
    dims, steps = (tuple(one) if isinstance(one, range) else one for one in (value.dims, value.steps))
    return dataclasses.replace(value, dims=dims, steps=steps)  # a range has no text; the tuple means the same


def _read_indices(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {int(key) if isinstance(key, str) and key.isdigit() else key: item for key, item in value.items()}
    if isinstance(value, str) and re.fullmatch(r"-?\d*:-?\d*(:-?\d*)?", value):
        return slice(*(int(part) if part else None for part in value.split(":")))
    return value


def write_space(space: ActionSpace) -> dict[str, Any]:
    """What `check_space` reads: nothing but JSON's types, except for dimensions as keys, which YAML has."""
    values = {one.name: getattr(space, one.name) for one in fields(space)}
    for name, value in values.items():
        if isinstance(value, slice):
            ends = ("" if end is None else str(end) for end in (value.start, value.stop, value.step))
            values[name] = ":".join(ends).removesuffix(":") if value.step is None else ":".join(ends)
        elif isinstance(value, tuple):
            values[name] = list(value)
        elif isinstance(value, Mapping):
            values[name] = {key: list(item) if isinstance(item, tuple) else item for key, item in value.items()}
    return {name: value for name, value in values.items() if value is not None}


def option(default: Any, help: str, check: Check, read: Callable[[str], Any] = read_value, **more: Any) -> Any:
    """A field of `Spec`: its default, one line of help, and how a value is checked and read from text."""
    return field(default=default, metadata={"option": Option(help, check, read)}, **more)
