"""The processors of the policy type ``keystone``: those of its base checkpoint."""

from typing import Any

from lerobot.policies.factory import make_pre_post_processors

from lerobot_policy_keystone.configuration_keystone import KeystoneConfig


def make_keystone_pre_post_processors(config: KeystoneConfig, dataset_stats: Any = None) -> tuple[Any, Any]:
    """Called by LeRobot by its name; the statistics are the checkpoint's."""
    return make_pre_post_processors(
        config.base,
        pretrained_path=config.base_path,
        preprocessor_overrides={
            "device_processor": {"device": str(config.device)},
            "rename_observations_processor": {"rename_map": config.rename_map},
        },
    )
