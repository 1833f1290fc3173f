"""The command ``keystone``. One short file per command; only the named one is imported, and what it needs when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from inspect import cleandoc

from keystone_robotics import __version__
from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.tables import printable

#: The extra that provides an optional package.
EXTRAS = {
    **dict.fromkeys(
        ("gym_pusht", "gymnasium", "metaworld", "mujoco", "pymunk", "safetensors", "scipy", "yaml"), "eval"
    ),
    **dict.fromkeys(("PIL", "matplotlib"), "plot"),
    "ray": "ray",
    "rerun": "rerun",
    **dict.fromkeys(("grpc", "msgpack", "websockets"), "serve"),
    "vla_eval": "vla-eval",
}

#: Commands: a function whose arguments are the flags, or a `SubcommandApp` of several.
COMMANDS = {
    "check": "keystone_robotics.cli.check:run",
    "eval": "keystone_robotics.cli.evaluate:run",
    "tune": "keystone_robotics.cli.tune:run",
    "compare": "keystone_robotics.cli.compare:run",
    "report": "keystone_robotics.cli.report:run",
    "view": "keystone_robotics.cli.view:run",
    "inspect": "keystone_robotics.cli.inspect:run",
    "profile": "keystone_robotics.cli.profile:run",
    "monitor": "keystone_robotics.cli.monitor:run",
    "serve": "keystone_robotics.cli.serve:run",
    "recipes": "keystone_robotics.cli.recipes:run",
    "vla-eval": "keystone_robotics.cli.vla_eval:run",
}

#: Entry points of this group add commands of other distributions.
GROUP = "keystone_robotics.commands"
#: Commands of the study, a separate distribution.
STUDY = ("demo", "demonstrations", "train", "reproduce", "roofline")

DESCRIPTION = f"""KeyStone {__version__}: draw K action chunks from one observation, execute what they agree on.
`keystone COMMAND --help` shows the options of a command, `keystone --version` the version."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. User errors are one line on stderr and exit code 2."""
    args = list(sys.argv[1:] if args is None else args) or ["--help"]
    if args == ["--version"]:
        sys.stdout.write(f"keystone {__version__}\n")
        return 0
    try:
        import rich  # noqa: F401  (used by the commands; fail before a command runs, not after)
        import tyro
        from tyro.extras import SubcommandApp
    except ImportError:
        return _refuse('the command line needs tyro and rich: pip install "keystone-robotics[cli]"')
    commands = {name: EntryPoint(name, value, GROUP) for name, value in COMMANDS.items()}
    if args[0] not in commands:
        commands |= {entry.name: entry for entry in entry_points(group=GROUP)}
    if args[0] in STUDY and args[0] not in commands:
        return _refuse(
            f"`keystone {args[0]}` belongs to the study, which is not installed: pip install keystone-study "
            "(from a clone of the repository: pip install ./study)"
        )
    if args[0] not in commands and not args[0].startswith("-"):
        return _refuse(f"there is no command {args[0]!r}: {nearest_name(args[0], commands)}")
    command = args[0] if args[0] in commands else None
    loaded = {}
    for entry in [commands[command]] if command else commands.values():
        try:
            loaded[entry.name] = entry.load()
        except Exception as error:  # noqa: PERF203 (a broken distribution must not end the other commands)
            broken = f"the command {entry.name} of {entry.value} cannot be loaded: {error}"
            if command:
                return _refuse(broken)
            sys.stderr.write(f"keystone: {broken}\n")
    app = loaded[command] if command else SubcommandApp()
    try:
        if not command:
            for name, one in loaded.items():
                app.command(one, name=name, help=cleandoc(one.__doc__).split("\n\n")[0])  # the first sentence is enough
            app.cli(prog="keystone", description=DESCRIPTION, args=args)
        elif isinstance(app, SubcommandApp):
            app.cli(prog=f"keystone {command}", description=app.__doc__, args=args[1:])
        else:
            tyro.cli(app, prog=f"keystone {command}", args=args[1:])
    except KeystoneError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        return _refuse(f'this needs {package}: pip install "keystone-robotics[{EXTRAS[package]}]"')
    return 0


def _refuse(reason: str) -> int:
    lines = map(printable, reason.splitlines())  # a name in it may be somebody else's
    sys.stderr.write("keystone: " + "\n".join(lines) + "\n")
    return 2
