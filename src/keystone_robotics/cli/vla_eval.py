"""``keystone vla-eval``: vla-eval's model servers, whose policies choose among K candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from keystone_robotics.errors import KeystoneError


def serve(
    target: Annotated[Path, tyro.conf.Positional],
    k: Annotated[int | Literal["auto"] | None, tyro.conf.arg(aliases=["-k"])] = None,
    rule: str | None = None,
    params: str | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    metric: str | None = None,
    fast: Literal["true", "false"] | None = None,
    compile: Literal["true", "false"] | None = None,
    site: str | None = None,
    space: str | None = None,
    rounds: str | None = None,
    address: str | None = None,
    arg: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """Serve a vla-eval server script, or its YAML configuration, with KeyStone in it; in place of `vla-eval serve`.

    Options go over the `keystone:` block under `args:` of the YAML file, and that over KEYSTONE_K and the like in the
    environment. While it serves,
    `curl "localhost:8000/config?keystone_k=8"` changes K.

    Args:
        target: server script (.py) or configuration (.yaml) of vla-eval.
        k: candidates per round, 16 if nobody says otherwise; 1 is the policy's own code, auto finds it in the first round.
        rule: how one is chosen.
        params: of the rule, tau=0.5,clusters=3 or JSON.
        temperature: factor on the initial noise.
        seed: the noise of a round then follows from it, the episode and the step.
        metric: l2, l1 or cosine.
        fast: draw on a fast path, where there is one.
        compile: compile the denoising step.
        site: for a policy that KeyStone does not know, the method that draws noise and returns chunks: _model.sample_actions.
        space: what counts in distances, as JSON, {"dims": 7, "steps": 8}; default steps: those that the server executes.
        rounds: file to which every round appends a JSON line.
        address: host:port to serve on.
        arg: further arguments of the server, KEY=VALUE; may be repeated.
    """
    import os
    import sys

    from keystone_robotics.integrations.vla_eval.command import read_target, serve_command, serve_environment
    from keystone_robotics.integrations.vla_eval.options import ServeOptions, read_text
    from keystone_robotics.options import parse_params

    try:
        given = parse_params(params) if params else {}
    except ValueError as error:
        raise KeystoneError(f"--params {params}: {error}") from None
    block = {
        "k": k,
        "rule": rule,
        "temperature": temperature,
        "seed": seed,
        "metric": metric,
        "fast": None if fast is None else fast == "true",
        "compile": None if compile is None else compile == "true",
        "site": site,
        "rounds": rounds,
    }
    options = ServeOptions.parse({**block, **given, "space": read_text(space, "--space") if space else None})
    wanted = read_target(target)
    environment = serve_environment(wanted)
    command = serve_command(wanted, options, address, arg)
    os.execve(sys.executable, command, environment)  # noqa: S606 (vla-eval takes this process's place, signals and exit code)


def shim(script: Annotated[Path, tyro.conf.Positional], out: Path) -> None:
    """Write a script that `vla-eval serve` can start in place of a server script, with a `keystone:` block under `args:`.

    It repeats the requirements of the script (PEP 723), so that `uv run` sets up the same environment, with KeyStone added.

    Args:
        script: server script of vla-eval.
        out: file to write.
    """
    from keystone_robotics.integrations.vla_eval.command import read_target, write_shim

    target = read_target(script)
    if target.config is not None:
        raise KeystoneError(f"{script} is a configuration: give the script that it names, {target.script}")
    if out.resolve() == target.script:
        raise KeystoneError(f"--out {out} is the script itself: choose another name")
    write_shim(target.script, out)
