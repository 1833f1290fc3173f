"""Two rounds before the first request: the sampler is compiled, the self-check made and an automatic K found by then."""

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

#: The cameras of openpi's models, and what its transforms resize their images to.
CAMERAS, RESOLUTION = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"), (224, 224)


def warm_up(handle: Handle) -> bool:
    """Let an attached openpi `Policy` answer a made-up observation, twice: a compiled step that has seen instructions of two
    lengths takes any. Nothing of it is counted, logged or remembered, and random numbers are what they would have been.

    Returns:
        Whether it went well; if not, a warning says why, and the first request does without.

    Raises:
        KeystoneError: if the self-check fails, as it would at the first request.
    """
    policy = handle.engine.owner
    finding_k = handle.engine.listeners.find(AutoK)  # nobody executes what is answered, but K is found, if it is to be
    log.info("KeyStone: warming up with a made-up observation; what has to be compiled may take minutes")
    begin = time.perf_counter()
    try:
        with (
            handle.rehearsal(*finding_k),
            _synthetic_inputs(policy),
            preserve_rng(getattr(policy, "_pytorch_device", "cpu")),
        ):
            for share in (0.25, 0.5):  # with padding, as real ones have it: the fast path leaves it out
                policy.infer({"share": share})
    except KeystoneError:
        raise
    except Exception as error:  # a model of the user's own may need other inputs
        log.warning(
            "KeyStone: no warm-up, since a made-up observation does not suit this policy (%s: %s): the first request will "
            "compile and check instead", type(error).__name__, error,
        )  # fmt: skip
        return False
    log.info("KeyStone: warmed up in %.1f s, K=%d", time.perf_counter() - begin, handle.k)
    return True


@contextlib.contextmanager
def _synthetic_inputs(policy: Any) -> Iterator[None]:
    """Within this block the policy's input transform returns made-up inputs, with the ``"share"`` of the observation: the names
    of real observations differ between robots, the transformed inputs do not.
    """
    if not is_policy(policy):
        raise TypeError(f"expected openpi's Policy, not a {type(policy).__name__}")
    kept = {name: vars(policy)[name] for name in ("_input_transform", "_rng") if name in vars(policy)}
    policy._input_transform = lambda asked: made_up_inputs(policy._model, asked["share"])
    try:
        yield
    finally:
        vars(policy).update(kept)


def made_up_inputs(model: Any, share: float) -> dict[str, Any]:
    """What openpi's input transforms return for one observation, in the types that come out of them (statistics and
    tokens are 64 bits wide), so that nothing is compiled again for a real one.

    Args:
        model: openpi's, in JAX or PyTorch.
        share: how much of the longest instruction there is, of which the rest is padding.
    """
    sizes = getattr(model, "config", model)  # a PyTorch model has them there
    words = int(sizes.max_token_len)
    return {
        "image": {camera: np.zeros((*RESOLUTION, 3), np.uint8) for camera in CAMERAS},
        "image_mask": dict.fromkeys(CAMERAS, np.True_),
        "state": np.zeros(int(sizes.action_dim)),
        "tokenized_prompt": np.zeros(words, np.int64),
        "tokenized_prompt_mask": np.arange(words) < share * words,
    }
