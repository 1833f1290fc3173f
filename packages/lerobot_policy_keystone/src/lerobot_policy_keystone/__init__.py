"""KeyStone in LeRobot's own commands. LeRobot imports this package before it parses the command line.

It registers the policy type ``keystone`` and adds the flag ``--policy.keystone.…`` to every policy type. Should a LeRobot come
along into which the flag does not fit, a command that uses it (or ``KEYSTONE_K``) ends here: it must not run without KeyStone.
"""

import os
import sys

from lerobot_policy_keystone import flag
from lerobot_policy_keystone.configuration_keystone import KeystoneConfig
from lerobot_policy_keystone.options import KeystoneOptions

__all__ = ["KeystoneConfig", "KeystoneOptions"]

problem = flag.install()
if problem and flag.is_used(sys.argv, os.environ):
    # LeRobot logs exceptions of plugins and goes on, except for this one
    raise SystemExit(
        f"KeyStone: --policy.keystone and KEYSTONE_… do not work with this LeRobot: {problem}. "
        "Use --policy.type=keystone --policy.base_path=CHECKPOINT --policy.k=16 instead"
    )
