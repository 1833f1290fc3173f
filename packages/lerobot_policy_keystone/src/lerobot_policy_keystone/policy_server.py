"""``keystone-policy-server``: LeRobot's async policy server, whose policies choose among K candidates.

Takes the options of ``python -m lerobot.async_inference.policy_server``, and KeyStone's own as ``--keystone.k=16``.
"""

from dataclasses import dataclass, field

import draccus
from lerobot.async_inference.configs import PolicyServerConfig

from keystone_robotics.integrations import Settings
from lerobot_policy_keystone import flag, problem
from lerobot_policy_keystone.options import KeystoneOptions


@dataclass
class KeystonePolicyServerConfig(PolicyServerConfig):
    """LeRobot's, and KeyStone's options."""

    keystone: KeystoneOptions = field(default_factory=KeystoneOptions)


def main() -> None:
    """Serve until SIGINT or SIGTERM. KeyStone is on without any option: whoever starts this server wants it."""
    config = draccus.parse(KeystonePolicyServerConfig)
    flag.process_settings = config.keystone.settings().over(Settings.from_environment()).over(Settings(k=16))
    flag.process_settings.bind()  # what is wrong with it should not wait for the first client
    if problem:
        raise SystemExit(f"keystone-policy-server does not work with this LeRobot: {problem}")

    from lerobot_policy_keystone.serving import serve

    serve(config)
