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
    """LeRobot's options, guards for servers on a network, and KeyStone's options."""

    token_file: str | None = field(
        default=None, metadata={"help": "File with a token that clients must send: authorization: Bearer TOKEN"}
    )
    insecure: bool = field(default=False, metadata={"help": "Serve a network without a token"})
    checkpoints: list[str] = field(
        default_factory=list, metadata={"help": "Checkpoints that clients may load; default: any"}
    )
    max_message_mb: float = field(default=64, metadata={"help": "Largest observation in MB"})
    stream_timeout: float = field(default=10, metadata={"help": "Time to send an observation in seconds"})
    keystone: KeystoneOptions = field(default_factory=KeystoneOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_message_mb", "stream_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected a number above 0")


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

    try:
        serve(config)
    except KeystoneError as error:
        raise SystemExit(f"keystone-policy-server: {error}") from None
