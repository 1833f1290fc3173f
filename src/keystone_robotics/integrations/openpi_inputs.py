"""A synthetic observation for openpi's policies: their input transforms differ between robots, what these return does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from keystone_robotics.sample.families.pi.openpi_policy import is_policy

#: The cameras of openpi's models, and the size of their images after its transforms.
CAMERAS, RESOLUTION = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"), (224, 224)


@contextlib.contextmanager
def synthetic_input_transform(policy: Any) -> Iterator[None]:
    """Within this block the policy's input transform returns synthetic inputs, with the ``"share"`` of the observation: keys of
    raw observations differ between robots, those of transformed inputs do not.
    """
    if not is_policy(policy):
        raise TypeError(f"expected openpi's Policy, not a {type(policy).__name__}")
    kept = {name: vars(policy)[name] for name in ("_input_transform", "_rng") if name in vars(policy)}
    policy._input_transform = lambda observation: synthetic_inputs(policy._model, observation["share"])
    try:
        yield
    finally:
        vars(policy).update(kept)


def synthetic_inputs(model: Any, share: float) -> dict[str, Any]:
    """Synthetic inputs in the format of openpi's input transforms, with the same dtypes (64 bit for state and tokens), so that
    real inputs do not trigger recompilation.

    Args:
        model: openpi's, in JAX or PyTorch.
        share: fraction of the instruction tokens that are not padding.
    """
    sizes = getattr(model, "config", model)  # PyTorch models have a config
    words = int(sizes.max_token_len)
    return {
        "image": {camera: np.zeros((*RESOLUTION, 3), np.uint8) for camera in CAMERAS},
        "image_mask": dict.fromkeys(CAMERAS, np.True_),
        "state": np.zeros(int(sizes.action_dim)),
        "tokenized_prompt": np.zeros(words, np.int64),
        "tokenized_prompt_mask": np.arange(words) < share * words,
    }
