"""Fits a client's observation to what a policy takes: names, shapes, types. What does not fit is refused in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from keystone_robotics.serve.messages import Refused

#: Under which an instruction may come.
INSTRUCTIONS = ("task", "prompt", "instruction", "language_instruction")


def is_image(example: np.ndarray[Any, Any]) -> bool:
    """Whether an input is an image: (height, width, 3) uint8."""
    return example.dtype == np.uint8 and example.ndim == 3


def take_task(observation: dict[str, Any]) -> str:
    """Remove the instruction from an observation; empty if there is none."""
    found = [observation.pop(name) for name in INSTRUCTIONS if name in observation]
    return str(found[0])[:4096] if found else ""


def policy_name(key: str, rename: Mapping[str, str] | None = None) -> str:
    """What the policy calls a key of a client."""
    return (rename or {}).get(key, key.replace("/", "."))


def fit(
    observation: Mapping[str, Any], example: Mapping[str, Any], rename: Mapping[str, str] | None = None
) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs of a policy from an observation; other keys are left out.

    A key matches if it is the policy's own, is renamed to it, or differs in the separator (``observation/state``).

    Args:
        observation: of a client.
        example: an observation as the policy takes it.
        rename: keys of clients -> keys of the policy.

    Raises:
        Refused: if an input is missing or has another shape.

    >>> fit({"observation/state": [1, 2], "time": 3}, {"observation.state": np.zeros(2, np.float32)})
    {'observation.state': array([1., 2.], dtype=float32)}
    """
    given = {policy_name(key, rename): value for key, value in observation.items()}
    if missing := [name for name in example if name not in given]:
        known = ", ".join(sorted(map(str, observation)))[:300] or "nothing"
        takes = ", ".join(missing)
        raise Refused("observation", f"the policy takes {takes}, and the observation has {known!a}: see --rename")
    return {
        name: _image(name, given[name]) if is_image(like) else _numbers(name, given[name], like)
        for name, like in example.items()
    }


def _image(name: str, value: Any) -> np.ndarray[Any, Any]:
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 3 or 3 not in value.shape[::2]:
        raise Refused("observation", f"{name} is {_described(value)}: expected an image (height, width, 3) of uint8")
    image: np.ndarray[Any, Any] = value if value.shape[2] == 3 else value.transpose(1, 2, 0)
    if not image.size:
        raise Refused("observation", f"{name} is an image without pixels: {image.shape}")
    return image


def _numbers(name: str, value: Any, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf" or array.shape != like.shape:
        raise Refused("observation", f"{name} is {_described(value)}: expected numbers of shape {like.shape}")
    array = array.astype(like.dtype)
    if not np.isfinite(array).all():
        raise Refused("observation", f"{name} has a NaN or an infinity")
    return array


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} of {value.dtype}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (list, tuple)) else "")
