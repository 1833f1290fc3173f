"""A LeRobot policy from a checkpoint, and an observation to try it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.policies.remote_code import remote_code


def load_policy(path: str, device: str | None = None, trust_remote_code: bool = False) -> tuple[Any, Any, Any]:
    """The policy of a checkpoint (a folder or a hub name), ready to act, and its pre- and post-processor.

    Args:
        path: folder or hub name.
        device: of the policy; None for its checkpoint's.
        trust_remote_code: run code that the checkpoint names but LeRobot did not install (docs/security.md).
    """
    folder = Path(path)
    if not folder.exists() and (folder.is_absolute() or path.startswith(".") or path.count("/") > 1):
        raise KeystoneError(
            f"there is no folder {path}: expected a LeRobot checkpoint, or a hub name such as lerobot/smolvla_base"
        )
    if folder.exists() and not (folder / "config.json").is_file():
        raise KeystoneError(
            f"{path} holds no config.json: expected a LeRobot checkpoint (a folder named pretrained_model)"
        )
    try:
        from lerobot.configs import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    except ImportError as error:
        raise KeystoneError(
            f"LeRobot is needed to load {path} ({error}): pip install 'keystone-robotics[lerobot]'"
        ) from error
    with remote_code(path, trust_remote_code):
        try:
            config = PreTrainedConfig.from_pretrained(path, cli_overrides=[f"--device={device}"] if device else [])
        except Exception as error:
            # The hub may be out of reach.
            problem = "is not a LeRobot checkpoint" if folder.exists() else "cannot be read"
            raise KeystoneError(f"{path} {problem}: {error}") from error
        config.pretrained_path = path
        policy_class = get_policy_class(config.type)
        # Before the weights, which may be large: the processors may be refused.
        preprocess, postprocess = _load_processors(path, config, make_pre_post_processors)
        policy = policy_class.from_pretrained(path, config=config).to(config.device).eval()
    return policy, preprocess, postprocess


def _load_processors(path: str, config: Any, make_pre_post_processors: Callable[..., Any]) -> Any:
    overrides = {"device_processor": {"device": str(config.device)}}
    try:
        return make_pre_post_processors(config, pretrained_path=path, preprocessor_overrides=overrides)
    except KeystoneError:
        raise
    except Exception as error:
        folder = Path(path)
        if folder.exists() and not (folder / "policy_preprocessor.json").is_file():
            raise KeystoneError(
                f"{path} holds no policy_preprocessor.json: policy.save_pretrained writes the policy alone; "
                "save its processors there too (save_pretrained of both), or attach to the policy itself, in Python"
            ) from error
        raise KeystoneError(f"{path}: its processors cannot be loaded: {error}") from error


def synthetic_observation(config: Any, seed: int = 0) -> dict[str, Any]:
    """One observation of the shapes that a policy's configuration asks for, with random numbers in it."""
    generator = torch.Generator().manual_seed(seed)
    observation: dict[str, Any] = {"task": "pick up the cube"}
    for name, feature in config.input_features.items():
        if name.startswith("observation"):
            observation[name] = torch.rand(feature.shape, generator=generator)
    return observation
