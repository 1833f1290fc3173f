"""Warm-up before the first request: compiles the sampler, runs the self-check and finds an automatic K."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle
from keystone_robotics.profiling.auto import AutoK
from keystone_robotics.sample.families.pi.openpi_policy import is_policy
from keystone_robotics.sample.noise import preserve_rng

log = logging.getLogger("keystone")

#: The cameras of openpi's models, and the size of their images after its transforms.
CAMERAS, RESOLUTION = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"), (224, 224)


def warm_up(handle: Handle) -> bool:
    """Run an attached openpi `Policy` on a synthetic observation, twice: with instructions of two lengths, a compiled step
    becomes dynamic in the length. The rounds are not counted, logged or remembered, and random generators are restored.

    Returns:
        Whether it succeeded; if not, a warning gives the reason, and the first request compiles and checks instead.

    Raises:
        KeystoneError: if the self-check fails, as it would at the first request.
    """
    policy = handle.engine.owner
    auto_k = handle.engine.listeners.find(AutoK)  # the only listener that should see these rounds
    log.info("KeyStone: warming up with a synthetic observation; compiling may take minutes")
    begin = time.perf_counter()
    try:
        with (
            handle.rehearsal(*auto_k),
            synthetic_input_transform(policy),
            preserve_rng(getattr(policy, "_pytorch_device", "cpu")),
        ):
            for share in (0.25, 0.5):  # with padding, like real instructions
                policy.infer({"share": share})
    except KeystoneError:
        raise
    except Exception as error:  # a custom model may need other inputs
        log.warning(
            "KeyStone: no warm-up: the policy failed on a synthetic observation (%s: %s). The first request will "
            "compile and check instead", type(error).__name__, error,
        )  # fmt: skip
        return False
    log.info("KeyStone: warmed up in %.1f s, K=%d", time.perf_counter() - begin, handle.k)
    return True


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
