"""Run by test_new_field.py in a process of its own, with one more field in `Spec`: prints where it appears.

The one line is put into the source of spec.py before anything imports it, as a developer would.
"""

import contextlib
import dataclasses
import importlib.machinery
import importlib.util
import io
import json
import os
import runpy
import sys
from pathlib import Path

ANCHOR = "    #: Parameters of the rule"
LINE = '    steps_of_field: int | None = option(None, "help of the field", check_count)\n'


class WithField(importlib.machinery.PathFinder):
    """Finds spec.py as ever, and loads it with the line added."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = super().find_spec(name, path, target)
        if name == "keystone_robotics.spec" and found is not None:
            loader = found.loader
            loader.get_code = lambda _: compile(
                Path(found.origin).read_text().replace(ANCHOR, LINE + ANCHOR, 1),
                found.origin,
                "exec",
                dont_inherit=True,
            )
        return found


def help_of(main, *arguments):
    """What a command prints for --help."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
        main([*arguments, "--help"])
    return " ".join(written.getvalue().split())


def value_of(function):
    """The field of what a function returns, or what it raised."""
    try:
        return function().steps_of_field
    except Exception as error:
        return repr(error)


def main():
    from draccus import parse

    import keystone_robotics as keystone
    from keystone_robotics import cli
    from keystone_robotics.integrations.vla_eval.options import ServeOptions
    from keystone_robotics.spec import spec_from

    # the file alone: the package imports every policy of LeRobot
    options = runpy.run_path(importlib.util.find_spec("lerobot_policy_keystone").origin.replace("__init__", "options"))
    KeystoneOptions = options["KeystoneOptions"]
    Server = dataclasses.make_dataclass("Server", [("keystone", KeystoneOptions)])
    Spec = keystone.Spec
    os.environ["COLUMNS"] = "200"
    block = {"steps_of_field": 3}
    config = parse(Server, args=["--keystone.steps_of_field=3"])
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
        parse(Server, args=["--help"])
    commands = [("check",), ("profile",), ("serve",), ("vla-eval", "serve")]
    helps = {" ".join(one): help_of(cli.main, *one) for one in commands}
    return {
        "text": str(Spec(steps_of_field=3)),
        "parsed": value_of(lambda: Spec.parse("medoid:k=4,steps_of_field=3")),
        "mapping": value_of(lambda: Spec.from_mapping(block)),
        "environment": value_of(lambda: Spec.from_environment({"KEYSTONE_STEPS_OF_FIELD": "3"})),
        "vla-eval block": value_of(lambda: ServeOptions.parse(block).spec),
        "lerobot": value_of(lambda: spec_from(config.keystone.given())),
        "lerobot python": value_of(lambda: KeystoneOptions(steps_of_field=3)),
        "lerobot help": "--keystone.steps_of_field" in written.getvalue() and "help of the field" in written.getvalue(),
        "flags": {name: "--steps-of-field" in text and "help of the field" in text for name, text in helps.items()},
        "wrong": value_of(lambda: Spec.from_environment({"KEYSTONE_STEPS_OF_FIELD": "0"})),
    }


if __name__ == "__main__":
    sys.meta_path.insert(0, WithField)
    sys.stderr.write(json.dumps(main()))
