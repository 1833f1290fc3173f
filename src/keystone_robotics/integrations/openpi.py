"""openpi's policies, by the name of a training configuration and a checkpoint.

`trained_policy` is what ``keystone serve`` loads, in openpi's environment::

    keystone serve "keystone_robotics.integrations.openpi:trained_policy?config=pi05_libero&checkpoint=…" --k 16 --execute 5
"""

from __future__ import annotations

import importlib
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.named import factory


@factory
def trained_policy(config: str, checkpoint: str, prompt: str | None = None, device: str | None = None) -> Any:
    """Openpi's policy of a checkpoint, for ``keystone serve``; in openpi's environment.

    Args:
        config: name of a training configuration, ``pi05_libero``.
        checkpoint: folder, or a path that openpi can download.
        prompt: of requests that bring none.
        device: of a PyTorch model.
    """
    try:
        policies = importlib.import_module("openpi.policies.policy_config")
        configs = importlib.import_module("openpi.training.config")
    except ImportError as error:
        raise KeystoneError(f"openpi cannot be imported here ({error}): run this in openpi's environment") from error
    return policies.create_trained_policy(
        configs.get_config(config), checkpoint, default_prompt=prompt, pytorch_device=device
    )
