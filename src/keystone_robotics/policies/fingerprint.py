"""Identifies a checkpoint by its files, or by its commit on the hub."""

from __future__ import annotations

import hashlib
from pathlib import Path

from keystone_robotics.policies.load import find_policy


def checkpoint_fingerprint(name: str) -> str:
    """A hash of a policy's configuration and weights. For a hub policy its name with the commit in the local cache, which is
    there once the policy was loaded; for a policy of the user's own code its name.
    """
    folder = find_policy(name)
    if folder is None:
        commit = _cached_commit(name)
        return f"{name}@{commit}" if commit else name
    digest = hashlib.sha256()
    files = [path for path in folder.rglob("*") if path.suffix in (".safetensors", ".json") and path.is_file()]
    # By their names within the folder; those at its top first and by name alone, as in fingerprints of earlier versions.
    for path in sorted(files, key=lambda path: (path.parent != folder, path.relative_to(folder).as_posix())):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def _cached_commit(name: str) -> str | None:
    """The commit of a hub policy in the local cache; does not use the network."""
    try:
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(name, "config.json")
    except (ImportError, ValueError):  # not installed, or not a valid hub name
        return None
    return Path(path).parent.name if isinstance(path, str) else None
