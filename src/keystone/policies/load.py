"""Finding a policy by its name or folder."""

from __future__ import annotations

import json
from pathlib import Path

from keystone.errors import KeystoneError, nearest_name
from keystone.policies.agent import Agent
from keystone.policies.flow import TYPE, load_flow
from keystone.policies.flow_agent import FlowAgent

#: The folder of the small policies that come with the package.
SHIPPED = Path(__file__).parent / "shipped"
#: Beside the weights of a policy that ``keystone train`` made: how it was made.
RECORD = "training.json"


def shipped_policies() -> dict[str, Path]:
    """The policies that come with the package, by name."""
    return {folder.name: folder for folder in sorted(SHIPPED.glob("*")) if (folder / "config.json").is_file()}


def find_policy(name: str) -> Path | None:
    """The folder of a shipped policy or of a checkpoint on disk; None for what may be a name on the hub.

    >>> find_policy("metaworld-mixt")
    Traceback (most recent call last):
    keystone.errors.KeystoneError: there is no policy 'metaworld-mixt': ...
    """
    shipped = shipped_policies()
    if name in shipped:
        return shipped[name]
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise KeystoneError(
                f"{name} holds no config.json: expected a folder that `keystone train` or LeRobot wrote"
            )
        return folder
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return None
    raise KeystoneError(
        f"there is no policy {name!r}: expected a folder, a LeRobot name on the hub (user/name) or one that comes with "
        f"KeyStone; {nearest_name(name, shipped)}"
    )


def trained_on(name: str) -> tuple[str, ...]:
    """The tasks that a policy was trained on, where ``keystone train`` made it; else none."""
    folder = find_policy(name)
    if folder is None or not (folder / RECORD).is_file():
        return ()
    try:
        return tuple(json.loads((folder / RECORD).read_text())["tasks"])
    except (ValueError, KeyError, TypeError) as error:
        raise KeystoneError(f"{folder / RECORD} cannot be read: {error}") from error


def load_agent(name: str, device: str | None = None) -> Agent:
    """A policy, ready to plan.

    Args:
        name: of a shipped policy, or a folder that ``keystone train`` or LeRobot wrote, or LeRobot's name on the hub.
        device: where a LeRobot policy runs; default what its checkpoint says.
    """
    folder = find_policy(name)
    if folder is not None:
        try:
            kind = json.loads((folder / "config.json").read_text()).get("type")
        except (ValueError, AttributeError) as error:
            raise KeystoneError(f"{folder / 'config.json'} cannot be read: {error}") from error
        if kind == TYPE:
            return FlowAgent(load_flow(folder), trained_on(name))
    from keystone.policies.lerobot_agent import LeRobotAgent

    return LeRobotAgent(str(folder or name), device, trained_on(name))
