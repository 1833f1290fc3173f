"""``keystone vla-eval``: vla-eval's model servers with KeyStone attached to their policies."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import tyro
from tyro.extras import SubcommandApp

from keystone_robotics.cli.flags import given, spec_flags
from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import check_file

EXPECTED = "a vla-eval server script (.py) or its configuration (.yaml)"
SpecFlags = spec_flags()

run = SubcommandApp()
run.__doc__ = "vla-eval's model servers with KeyStone in them."


@run.command
def serve(
    target: Annotated[Path, tyro.conf.Positional],
    spec: tyro.conf.OmitArgPrefixes[SpecFlags],  # type: ignore[valid-type]
    site: str | None = None,
    rounds: str | None = None,
    alarm: str | None = None,
    rerun: str | None = None,
    token_file: str | None = None,
    max_message_mb: float | None = None,
    address: str | None = None,
    arg: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """Serve a vla-eval server script, or its YAML configuration, with KeyStone; replaces `vla-eval serve`.

    Flags override the `keystone:` block under `args:` of the YAML file, which overrides KEYSTONE_* environment variables.
    With a seed, the noise of a round is derived from the seed, the episode and the step. At run time,
    `curl "localhost:8000/config?keystone_k=8"` changes K.

    Args:
        target: server script (.py) or configuration (.yaml) of vla-eval.
        spec: how candidates are drawn and one is selected; default execute: as many steps as the server executes.
        site: for an unsupported policy, the method that draws noise and returns chunks: _model.sample_actions.
        rounds: file to which every round appends a JSON line.
        alarm: file of `keystone monitor calibrate`; every answer then has the alarm's fields.
        rerun: show rounds in Rerun: spawn, the address of a viewer (rerun+http://HOST:9876/proxy), or a file.
        token_file: file with a token that requests to /config must send; without one, only this machine may change options.
        max_message_mb: largest message of a client in MB; default 64.
        address: host:port to serve on.
        arg: further arguments of the server, KEY=VALUE; may be repeated.
    """
    files = {"rounds": rounds, "alarm": alarm, "rerun": rerun, "token_file": token_file}
    flags = {**given(spec), "site": site, **files, "max_message_mb": max_message_mb}
    check_file(target, EXPECTED)
    from keystone_robotics.integrations.vla_eval.command import read_target, serve_command, serve_environment

    wanted = read_target(target)
    environment = serve_environment(wanted)
    command = serve_command(wanted, flags, address, arg)
    os.execve(sys.executable, command, environment)  # noqa: S606 (vla-eval replaces this process and gets its signals)


@run.command
def shim(script: Annotated[Path, tyro.conf.Positional], out: Path) -> None:
    """Write a script that `vla-eval serve` can start instead of a server script, with a `keystone:` block under `args:`.

    It repeats the requirements of the script (PEP 723), so that `uv run` sets up the same environment, with KeyStone added.

    Args:
        script: server script of vla-eval.
        out: file to write.
    """
    check_file(script, EXPECTED)
    from keystone_robotics.integrations.vla_eval.command import read_target, write_shim

    target = read_target(script)
    if target.config is not None:
        raise KeystoneError(f"{script} is a configuration: expected the script that it names, {target.script}")
    if out.resolve() == target.script:
        raise KeystoneError(f"--out {out} is the script itself: choose another name")
    write_shim(target.script, out)
