"""LeRobotDatasets by name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError


def check_dataset(name: str) -> None:
    """Raise a KeystoneError if a name can be none of a LeRobotDataset: neither a folder of one nor a name on the hub."""
    folder = Path(name)
    if folder.exists() and not (folder / "meta" / "info.json").is_file():
        raise KeystoneError(f"{name} holds no meta/info.json: expected the folder of a LeRobotDataset")
    if not folder.exists() and (folder.is_absolute() or name.startswith(".") or name.count("/") != 1):
        raise KeystoneError(
            f"there is no folder {name}: expected a LeRobotDataset, or a hub name such as lerobot/pusht"
        )


def open_dataset(name: str, episodes: Sequence[int] = ()) -> Any:
    """A LeRobotDataset: a folder, or a name on the hub.

    Raises:
        KeystoneError: in one line, if there is none, or it is in an older format.
    """
    check_dataset(name)
    try:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError as error:
        raise KeystoneError(f'LeRobot is needed to read {name} ({error}): pip install "lerobot[dataset]"') from error
    folder = Path(name)
    wanted = list(episodes) or None
    # Without FFmpeg it reads videos with pyav, and warns with 40 lines of tracebacks even where there is no video.
    codecs = logging.getLogger("lerobot.utils.import_utils")
    level = codecs.level
    codecs.setLevel(logging.ERROR)
    try:
        if folder.exists():
            return LeRobotDataset(folder.name, root=folder, episodes=wanted)
        return LeRobotDataset(name, episodes=wanted)
    except Exception as error:  # of the hub, of the format, of the files
        raise KeystoneError(
            f"{name} cannot be read as a LeRobotDataset: {' '.join(str(error).split())[:300]}"
        ) from error
    finally:
        codecs.setLevel(level)
