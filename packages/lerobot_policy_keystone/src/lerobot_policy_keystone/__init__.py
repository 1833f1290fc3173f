"""KeyStone in LeRobot's own commands. LeRobot imports this package before it parses the command line.

It registers the policy type ``keystone`` and adds the flags ``--policy.keystone.…`` to every policy type. If they do
not work with the installed LeRobot, or a flag or an environment variable is invalid, a command that uses them exits here with
one line, before a policy is loaded: it must not run without KeyStone.
"""

import os
import sys

from keystone_robotics.errors import KeystoneError
from keystone_robotics.spec import options, variable_of
from lerobot_policy_keystone.options import KeystoneOptions, check_command_line

# LeRobot logs exceptions of plugins and continues, except for SystemExit.
try:
    check_command_line(sys.argv[1:])
except KeystoneError as error:
    raise SystemExit(f"KeyStone: {error}") from None

try:
    from lerobot_policy_keystone import flag, noise

    noise.install()
    problem = flag.install()
except Exception as error:
    problem = f"{type(error).__name__}: {error}"

if problem and (
    any(argument.startswith("--policy.keystone") for argument in sys.argv)
    or any(os.environ.get(variable_of(name), "").strip() for name in options())
):
    raise SystemExit(
        f"KeyStone: --policy.keystone and KEYSTONE_… do not work with this LeRobot: {problem}. "
        "Use --policy.type=keystone --policy.base_path=CHECKPOINT --policy.k=16 instead"
    )

from lerobot_policy_keystone.configuration_keystone import KeystoneConfig

__all__ = ["KeystoneConfig", "KeystoneOptions", "problem"]
