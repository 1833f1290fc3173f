"""Builds the ``vla-eval serve`` command with a shim instead of the server script."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import atomic_write
from keystone_robotics.integrations.vla_eval.options import ServeOptions, absolute, environment_block
from keystone_robotics.integrations.vla_eval.shim import cache, has_requirements, shim
from keystone_robotics.view.live import is_file


@dataclass(frozen=True)
class Target:
    """The server to start.

    Attributes:
        script: the server script.
        config: the YAML file that names it, or None if the script itself was given.
        block: the `keystone` block of that file.
    """

    script: Path
    config: Path | None
    block: dict[str, Any]


def read_target(path: Path) -> Target:
    """Read a server script, or a YAML file that names one; the file exists.

    Raises:
        KeystoneError: if it is neither.
    """
    if path.suffix == ".py":
        return Target(path.resolve(), None, {})
    if path.suffix not in (".yaml", ".yml"):
        raise KeystoneError(f"{path}: expected a vla-eval server script (.py) or its configuration (.yaml)")
    import yaml
    from vla_eval.cli.config_loader import load_config

    try:
        config = load_config(str(path))
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise KeystoneError(f"{path} cannot be read: {error}") from None
    if not isinstance(config.get("script"), str):
        named = " It has `benchmarks:`, so it is for `vla-eval run`." if "benchmarks" in config else ""
        raise KeystoneError(f"{path} names no server: expected `script: path/to/server.py`.{named}")
    script = Path(config["script"])
    if not script.is_file():
        raise KeystoneError(
            f"{path} names the script {script}, which does not exist: vla-eval resolves it from the current directory, "
            f"{Path.cwd()}"
        )
    args = config.get("args") or {}
    return Target(script.resolve(), path.resolve(), args.get("keystone") or {})


def serve_command(
    target: Target, flags: Mapping[str, Any], address: str | None = None, args: Sequence[str] = ()
) -> list[str]:
    """The ``vla-eval serve`` command for a target. Flags override the block in its file, which overrides the environment.
    Writes the shim and a small YAML file.

    Args:
        target: what to serve.
        flags: options from the command line, None where not given.
        address: host:port, or None for the file's.
        args: further arguments of the server, KEY=VALUE.
    """
    for arg in args:
        if "=" not in arg:
            raise KeystoneError(f"--arg {arg}: expected KEY=VALUE, as for `vla-eval serve`")
    block = ServeOptions.parse(flags, target.block, environment_block()).block()
    block |= {name: absolute(block[name]) for name in ("rounds", "alarm", "token_file") if name in block}
    if is_file(block.get("rerun", "")):
        block["rerun"] = absolute(block["rerun"])
    config = _write(target)
    command = [sys.executable, "-m", "vla_eval.cli.main", "serve", "--config", str(config)]
    if address:
        command += ["--address", address]
    for arg in (f"keystone={json.dumps(block)}", *args):
        command += ["--arg", arg]
    return command


def serve_environment(target: Target) -> dict[str, str]:
    """Environment variables for that command; uv is also found in the folder of this Python.

    Raises:
        KeystoneError: if there is no uv.
    """
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    if shutil.which("uv", path=environment["PATH"]) is None:
        raise KeystoneError("vla-eval starts servers with uv, which is not installed: pip install uv")
    if not has_requirements(target.script):
        # uv chooses the environment of a script without requirements: use this one, not that of the project in the current
        # directory.
        environment.update(VIRTUAL_ENV=sys.prefix, UV_NO_PROJECT="1")
    return environment


def write_shim(script: Path, path: Path) -> None:
    """Write the shim of a server script to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        draft.write_text(shim(script), encoding="utf-8")


def _write(target: Target) -> Path:
    """Write the shim and a configuration that names it as the script."""
    name = f"{target.script.stem}-{_digest(target.script)}"
    path = cache() / f"{name}.py"
    write_shim(target.script, path)
    config = {"script": str(path)} | ({"extends": str(target.config)} if target.config else {})
    file = cache() / f"{name}-{_digest(target.config)}.yaml"
    with atomic_write(file) as draft:
        draft.write_text(json.dumps(config))  # JSON is YAML
    return file


def _digest(path: Path | None) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:8]
