"""KeyStone's options for LeRobot's command-line parser: flat, all optional, generated from `keystone.Spec`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Any

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.spec import options, options_from_environment, read_options, spec_from

PREFIX = "--policy.keystone."


def _optional(name: str, help: str) -> Any:
    """A field for draccus, which parses the value as YAML; `read_options` validates it."""
    return field(default=None, metadata={"custom_args": {"help": help.replace("%", "%%"), "metavar": name.upper()}})


_Fields: Any = make_dataclass(
    "_Fields", [(name, Any, _optional(name, option.help)) for name, option in options().items()]
)


@dataclass
class KeystoneOptions(_Fields):
    """KeyStone: draw K action chunks from one context, execute the one they agree on. Any option turns it on."""

    def given(self) -> dict[str, Any]:
        """The given options, parsed and validated."""
        return read_options({name: getattr(self, name) for name in options()}, "keystone.{}".format)


def check_command_line(arguments: Sequence[str]) -> None:
    """Check the values of ``--policy.keystone.…`` and of the environment, before LeRobot parses or loads anything.

    Raises:
        KeystoneError: about the first that is wrong.

    >>> check_command_line(["--policy.path=x", "--policy.keystone.k=x"])
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: --policy.keystone.k=x: expected a whole number, "auto", or a range such as 4..16
    """
    texts = dict(_texts(arguments))
    for name in texts:
        if name not in options():
            raise KeystoneError(f"{PREFIX}{name}: there is no such option: {nearest_name(name, options())}")
    given = read_options(texts, f"{PREFIX}{{}}".format)
    environment = options_from_environment()
    if given:
        spec_from(given, environment)


def _texts(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and values, written as ``--name=value`` or ``--name value``. YAML's null is not given."""
    for argument, following in zip(arguments, [*arguments[1:], ""]):
        if argument.startswith(PREFIX):
            name, equals, text = argument.removeprefix(PREFIX).partition("=")
            value = text if equals else following
            if value not in ("null", "None", "~"):
                yield name, value
