"""KeyStone's options as LeRobot's command-line parser reads them: flat, all optional, generated from `keystone.Spec`."""

from dataclasses import dataclass, field, make_dataclass
from typing import Any

from keystone_robotics.spec import options, read_options


def _optional(name: str, help: str) -> Any:
    """A field for draccus, which makes a value of the text as YAML does; `read_options` reads and checks it."""
    return field(default=None, metadata={"custom_args": {"help": help.replace("%", "%%"), "metavar": name.upper()}})


_Fields: Any = make_dataclass(
    "_Fields", [(name, Any, _optional(name, option.help)) for name, option in options().items()]
)


@dataclass
class KeystoneOptions(_Fields):
    """KeyStone: draw K action chunks from one context, execute the one they agree on. Any option turns it on."""

    def given(self) -> dict[str, Any]:
        """The options that were given, read and checked."""
        return read_options({name: getattr(self, name) for name in options()}, "keystone.{}".format)
