"""``keystone-policy-server``: LeRobot's async policy server with KeyStone attached to its policies.

Takes the options of ``python -m lerobot.async_inference.policy_server``, and KeyStone's own as ``--keystone.k=16``.
"""

from dataclasses import dataclass, field

import draccus
from lerobot.async_inference.configs import PolicyServerConfig

from keystone_robotics.errors import KeystoneError
from keystone_robotics.spec import DEFAULT_RULE, merge, options_from_environment, spec_from
from lerobot_policy_keystone import flag, problem
from lerobot_policy_keystone.options import KeystoneOptions


@dataclass
class KeystonePolicyServerConfig(PolicyServerConfig):
    """LeRobot's, and KeyStone's options."""

    keystone: KeystoneOptions = field(default_factory=KeystoneOptions)


def main() -> None:
    """Serve until SIGINT or SIGTERM. KeyStone is enabled without any option."""
    config = draccus.parse(KeystonePolicyServerConfig)
    try:
        flag.process_options = merge(config.keystone.given(), options_from_environment(), {"rule": DEFAULT_RULE})
        spec_from(flag.process_options)  # report invalid options before the first client connects
    except KeystoneError as error:
        raise SystemExit(f"keystone-policy-server: {error}") from None
    if problem:
        raise SystemExit(f"keystone-policy-server does not work with this LeRobot: {problem}")

    from lerobot_policy_keystone.serving import serve

    serve(config)
