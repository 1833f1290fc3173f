"""KeyStone's options for LeRobot's command-line parser: flat, all optional, generated from `keystone.Spec`."""

from dataclasses import dataclass, field, make_dataclass
from typing import Any

from keystone_robotics.spec import options, read_options


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
