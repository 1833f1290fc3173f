"""The command ``keystone``. One short file per command; its dependencies are imported when it runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from keystone_robotics import __version__
from keystone_robotics.errors import KeystoneError

#: The extra that provides an optional package.
EXTRAS = {
    **dict.fromkeys(
        ("gym_pusht", "gymnasium", "metaworld", "mujoco", "pymunk", "safetensors", "scipy", "yaml"), "eval"
    ),
    **dict.fromkeys(("PIL", "matplotlib"), "plot"),
    "ray": "ray",
    "vla_eval": "vla-eval",
}

#: Commands and their modules in this package.
COMMANDS = {
    "check": "check",
    "eval": "evaluate",
    "compare": "compare",
    "profile": "profile",
    "recipes": "recipes",
}

#: Entry points of this group add commands of other distributions.
GROUP = "keystone_robotics.commands"
#: Commands of the study, a separate distribution.
STUDY = ("demo", "train", "reproduce", "roofline")

DESCRIPTION = f"""KeyStone {__version__}: draw K action chunks from one shared context, execute the one they agree on.
`keystone COMMAND --help` shows the options of a command, `keystone --version` the version."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. User errors are one line on stderr and exit code 2."""
    args = sys.argv[1:] if args is None else args
    if list(args) == ["--version"]:
        sys.stdout.write(f"keystone {__version__}\n")
        return 0
    try:
        import rich  # noqa: F401  (used by the commands; fail before a command runs, not after)
        from tyro.extras import SubcommandApp
    except ImportError:
        return _refuse('the command line needs tyro and rich: pip install "keystone-robotics[cli]"')
    from keystone_robotics.cli import monitor, vla_eval

    commands = {
        name: importlib.import_module(f"keystone_robotics.cli.{module}").run for name, module in COMMANDS.items()
    }
    for entry in entry_points(group=GROUP):
        try:
            commands[entry.name] = entry.load()
        except Exception as error:  # noqa: PERF203 (a broken distribution must not end the other commands)
            sys.stderr.write(f"keystone: the command {entry.name} of {entry.value} cannot be loaded: {error}\n")
    if args and args[0] in STUDY and args[0] not in commands:
        return _refuse(
            f"`keystone {args[0]}` belongs to the study, which is not installed: pip install keystone-study "
            "(from a clone of the repository: pip install ./study)"
        )
    app = SubcommandApp()
    for name, run in commands.items():
        app.command(name=name)(run)
    alarms = SubcommandApp()
    for name in ("calibrate", "evaluate", "scores"):
        alarms.command(name=name)(getattr(monitor, name))
    app.command(alarms, name="monitor", help="Alarms from the disagreement of candidates.")
    servers = SubcommandApp()
    servers.command(name="serve")(vla_eval.serve)
    servers.command(name="shim")(vla_eval.shim)
    app.command(servers, name="vla-eval", help="vla-eval's model servers with KeyStone in them.")
    try:
        app.cli(prog="keystone", description=DESCRIPTION, args=args)
    except KeystoneError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        return _refuse(f'this needs {package}: pip install "keystone-robotics[{EXTRAS[package]}]"')
    return 0


def _refuse(reason: str) -> int:
    sys.stderr.write(f"keystone: {reason}\n")
    return 2
