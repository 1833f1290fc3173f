"""Stored profiles for `keystone.attach(policy, k="auto")`: one JSON file each, named by its fingerprint."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from keystone_robotics.files import atomic_write
from keystone_robotics.profiling.result import Profile

log = logging.getLogger("keystone")

#: In the environment: the folder of stored profiles.
VARIABLE = "KEYSTONE_PROFILES"
#: Rounds of each K below which a profile is not stored: a trial must not decide about K for good.
ENOUGH = 5


def profiles_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder that was given, or that the environment names, or the one in the user's cache.

    >>> str(profiles_folder("here"))
    'here'
    """
    named = given or os.environ.get(VARIABLE, "").strip()
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(cache) if cache else Path.home() / ".cache") / "keystone" / "profiles"


def save_profile(profile: Profile, folder: Path) -> None:
    """Write a profile; a folder that is not writable is only a warning, because nothing depends on it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / f"{profile.fingerprint}.json") as draft:
            draft.write_text(json.dumps(profile.as_dict(), indent=1) + "\n")
    except OSError as error:
        log.warning("KeyStone: the profile could not be stored in %s: %s", folder, error.strerror)


def find_profile(fingerprint: str, folder: Path) -> Profile | None:
    """The profile with this fingerprint; None if there is none, or none that can be read."""
    path = folder / f"{fingerprint}.json"
    try:
        return Profile.from_dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("KeyStone: the profile in %s cannot be read and is made again: %s", path, error)
        return None
