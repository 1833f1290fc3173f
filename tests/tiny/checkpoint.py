"""Complete LeRobot checkpoints on disk, which `lerobot-eval` loads without a network."""

import copy
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import torch
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.utils.constants import ACTION, OBS_IMAGE, OBS_STATE
from torch import Tensor

from .common import assets, features


@dataclasses.dataclass(frozen=True)
class Env:
    """What a policy must know of an environment: dimensions and the range of its states and actions."""

    state_dim: int
    action_dim: int
    image_size: int
    low: float
    high: float


ENVS = {
    "pusht": Env(state_dim=2, action_dim=2, image_size=96, low=0.0, high=512.0),
}


def env_features(name: str) -> dict[str, Any]:
    """Config overrides that fit a policy to an environment: `build("diffusion", **env_features("pusht"))`."""
    env = ENVS[name]
    shape = (3, env.image_size, env.image_size)
    return features(env.state_dim, env.action_dim, image_shape=shape, image_key=OBS_IMAGE)


def statistics(low: float, high: float, *shape: int) -> dict[str, Tensor]:
    """Dataset statistics of values spread evenly over [low, high]."""
    width = high - low
    values = {
        "min": low,
        "max": high,
        "mean": low + width / 2,
        "std": width / 12**0.5,
        "q01": low + 0.01 * width,
        "q99": low + 0.99 * width,
    }
    return {name: torch.full(shape, value) for name, value in values.items()}


def save_checkpoint(policy: PreTrainedPolicy, directory: Path, env: str = "pusht") -> None:
    """Write config, weights and processors of a policy that was built with `env_features(env)`.

    Local backbones and tokenizers are copied along, because the originals vanish with this process.
    """
    directory = directory.resolve()
    config = copy.deepcopy(policy.config)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, str) and value.startswith(str(assets())):
            local = directory / Path(value).name
            shutil.copytree(value, local, dirs_exist_ok=True)
            setattr(config, field.name, str(local))

    space = ENVS[env]
    stats = {
        OBS_STATE: statistics(space.low, space.high, space.state_dim),
        ACTION: statistics(space.low, space.high, space.action_dim),
        OBS_IMAGE: statistics(0.0, 1.0, 3, 1, 1),
    }
    policy.save_pretrained(directory)
    config.save_pretrained(directory)
    for processor in make_pre_post_processors(config, dataset_stats=stats):
        processor.save_pretrained(directory)
