"""What LeRobot's robot client sends and gets, in its own classes: read without running pickles, and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from lerobot.async_inference.helpers import RemotePolicyConfig, TimedAction, TimedObservation
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.utils.feature_utils import build_dataset_frame

from keystone_robotics.serve import unpickle
from keystone_robotics.serve.messages import Refused

#: Seconds between actions: LeRobot's default.
STEP = 1 / 30
#: Values that are joined to an input that the policy does not take.
MOST_NAMES = 1000


def frame(
    observation: TimedObservation, instructions: RemotePolicyConfig, expected: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """A robot's raw observation with LeRobot's names, as its own server makes it; and the task.

    Args:
        observation: of the client.
        instructions: with its features: which values are joined to an input.
        expected: an example of each input of the policy.
    """
    raw = observation.observation
    try:
        _check_features(instructions, raw, expected)
        frame = build_dataset_frame(instructions.lerobot_features, raw, prefix="observation")
    except Refused:
        raise
    except Exception as error:
        raise Refused("observation", f"the observation does not fit the client's features: {error!r}") from None
    inputs = {instructions.rename_map.get(name, name): value for name, value in frame.items()}
    return inputs, str(raw.get("task", ""))[:4096]


def _check_features(instructions: RemotePolicyConfig, raw: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Before values are joined: names and sizes of values come from the client, and their product could be any size."""
    for key, feature in instructions.lerobot_features.items():
        like = expected.get(instructions.rename_map.get(key, key))
        if not key.startswith("observation") or feature["dtype"] != "float32" or len(feature["shape"]) != 1:
            continue
        if like is not None and len(feature["names"]) != len(like):
            raise Refused("observation", f"{key!a} has {len(feature['names'])} names: the policy takes {len(like)}")
        if like is None and len(feature["names"]) > MOST_NAMES:
            raise Refused("observation", f"{key!a} has more than {MOST_NAMES} names")
        for name in feature["names"]:
            if np.ndim(raw[name]) != 0:
                raise Refused("observation", f"{str(name)[:50]!a} has shape {np.shape(raw[name])}: expected one number")


def timed(actions: Any, observation: TimedObservation) -> list[TimedAction]:
    """Actions (T, D) with the times at which they are due."""
    first = observation.timestep
    return [
        TimedAction(
            timestamp=observation.timestamp + number * STEP, timestep=first + number, action=torch.tensor(action)
        )
        for number, action in enumerate(actions)
    ]


def read_instructions(data: bytes) -> RemotePolicyConfig:
    """The instructions of a client.

    Raises:
        RefusedPickle: if the bytes are anything else.
    """
    instructions = unpickle.loads(data, (RemotePolicyConfig, PolicyFeature, FeatureType))
    _expect(instructions, RemotePolicyConfig)
    for name in ("policy_type", "pretrained_name_or_path", "device"):
        _expect(getattr(instructions, name), str, name)
    for name in ("lerobot_features", "rename_map"):
        _expect(getattr(instructions, name), dict, name)
    for old, new in instructions.rename_map.items():
        _expect(old, str, "a name in rename_map")
        _expect(new, str, "a name in rename_map")
    _expect(instructions.actions_per_chunk, int, "actions_per_chunk")
    if isinstance(instructions.actions_per_chunk, bool) or instructions.actions_per_chunk < 1:
        raise unpickle.RefusedPickle(f"actions_per_chunk={instructions.actions_per_chunk!r}: expected 1 or more")
    return instructions


def read_observation(data: bytes) -> TimedObservation:
    """The observation of a client.

    Raises:
        RefusedPickle: if the bytes are anything else.
    """
    observation = unpickle.loads(data, (TimedObservation,))
    _expect(observation, TimedObservation)
    _expect(observation.timestep, int, "timestep")
    _expect(observation.timestamp, float, "timestamp")
    _expect(observation.must_go, bool, "must_go")
    _expect(observation.observation, dict, "observation")
    if not math.isfinite(observation.timestamp):
        raise unpickle.RefusedPickle(f"timestamp={observation.timestamp}: expected a finite number")
    return observation


def _expect(value: object, kind: type, name: str = "message") -> None:
    if not isinstance(value, kind):
        raise unpickle.RefusedPickle(f"{name} is a {type(value).__name__}: expected a {kind.__name__}")
