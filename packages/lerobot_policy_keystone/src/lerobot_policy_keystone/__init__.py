"""KeyStone in LeRobot's own commands. LeRobot imports this package before it parses the command line.

It registers the policy type ``keystone`` and adds the flag ``--policy.keystone.…`` to every policy type. Should a LeRobot come
along into which the flag does not fit, a command that uses it (or ``KEYSTONE_K``) ends here: it must not run without KeyStone.
"""

import os
import sys

try:
    from lerobot_policy_keystone import flag

    problem = flag.install()
except Exception as error:
    problem = f"{type(error).__name__}: {error}"

if problem and (
    any(argument.startswith("--policy.keystone") for argument in sys.argv)
    or any(
        value
        and name.startswith("KEYSTONE_")
        and name[9:] not in ("LOG", "PROFILES", "UPSTREAM")  # these are no settings
        for name, value in os.environ.items()
    )
):
    # LeRobot logs exceptions of plugins and goes on, except for this one
    raise SystemExit(
        f"KeyStone: --policy.keystone and KEYSTONE_… do not work with this LeRobot: {problem}. "
        "Use --policy.type=keystone --policy.base_path=CHECKPOINT --policy.k=16 instead"
    )

from lerobot_policy_keystone.configuration_keystone import KeystoneConfig
from lerobot_policy_keystone.options import KeystoneOptions

__all__ = ["KeystoneConfig", "KeystoneOptions", "problem"]
