"""The `keystone:` block of a server's arguments: the fields of `Spec`, and options of the server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.select.rules.checks import number
from keystone_robotics.spec import Spec, options, options_from_environment, spec_from

#: Options of a server that are not in `Spec`.
SERVER_OPTIONS = ("site", "rounds", "alarm", "rerun", "token_file", "max_message_mb")

#: What can be given as variables, too.
VARIABLES = {"rounds": "KEYSTONE_LOG", "alarm": "KEYSTONE_ALARM", "rerun": "KEYSTONE_RERUN"}
DEFAULT_MAX_MESSAGE_MB = 64


@dataclass(frozen=True)
class ServeOptions:
    """The options of a server's `keystone:` block.

    Attributes:
        spec: how candidates are drawn and one is selected.
        site: for a policy without an adapter, the method to vectorise, as a path from the server: ``_model.sample_actions``.
        rounds: file to which every round appends a JSON line.
        alarm: file of ``keystone monitor calibrate``; every answer then has the alarm's fields.
        rerun: target of a `keystone.RerunLog`: spawn, the address of a viewer, or a file.
        token_file: file with a token that requests to change options must send.
        max_message_mb: largest message of a client in MB; None is 64.
    """

    spec: Spec = field(default_factory=Spec)
    site: str | None = None
    rounds: str | None = None
    alarm: str | None = None
    rerun: str | None = None
    token_file: str | None = None
    max_message_mb: float | None = None

    @classmethod
    def parse(cls, *blocks: object) -> ServeOptions:
        """Parse flat mappings of options and rule parameters; earlier ones override later ones.

        Raises:
            KeystoneError: for an unknown name or an invalid value.

        >>> ServeOptions.parse({"k": 8, "tau": 0.5}, {"k": 4, "seed": 0}).block()
        {'rule': 'keystone', 'k': 8, 'seed': 0, 'tau': 0.5}
        >>> ServeOptions.parse({"rulle": "medoid"})
        Traceback (most recent call last):
        keystone_robotics.errors.KeystoneError: there is no option 'rulle': did you mean 'rule'? ...
        """
        layers = [_checked(block) for block in blocks]
        server = {name: layer.pop(name) for layer in reversed(layers) for name in SERVER_OPTIONS if name in layer}
        for name, value in server.items():
            if name == "max_message_mb":
                _check_size(name, value)
            elif not isinstance(value, str):
                raise KeystoneError(f"{name}={value!r}: expected text")
        spec = spec_from(*layers)
        rule = spec.bind()
        if rule.remembers:
            raise KeystoneError(
                f"rule {rule.name} looks back at the previous chunk of its episode, and a server serves many episodes at once: "
                "choose another rule"
            )
        return cls(spec, **server)

    @property
    def max_bytes(self) -> int:
        """Largest message of a client."""
        return int(1e6 * (DEFAULT_MAX_MESSAGE_MB if self.max_message_mb is None else self.max_message_mb))

    def block(self) -> dict[str, Any]:
        """The block that parses to these options."""
        server = {name: getattr(self, name) for name in SERVER_OPTIONS}
        return {**self.spec.as_dict(), **{name: value for name, value in server.items() if value is not None}}


def environment_block(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """A block from the ``KEYSTONE_…`` variables; ``KEYSTONE_LOG`` is the file of the rounds, ``KEYSTONE_ALARM`` of the alarm,
    ``KEYSTONE_RERUN`` where rounds are shown.

    >>> environment_block({"KEYSTONE_K": "8", "KEYSTONE_LOG": "rounds.jsonl"})
    {'k': 8, 'rounds': 'rounds.jsonl'}
    """
    files = {name: environ.get(variable, "").strip() for name, variable in VARIABLES.items()}
    return options_from_environment(environ) | {name: path for name, path in files.items() if path}


def _checked(block: object) -> dict[str, Any]:
    """A block without the options that are None, which vla-eval uses for "not given"."""
    if not isinstance(block, Mapping):
        raise KeystoneError(f"keystone={block!r} is not a block of options: expected something like {{k: 16}}")
    known = [*options(), *SERVER_OPTIONS]
    for name in block:
        if name not in known:
            raise KeystoneError(f"there is no option {name!r}: {nearest_name(name, known)}")
    return {name: value for name, value in block.items() if value is not None}


def _check_size(name: str, value: object) -> None:
    try:
        number(name, value, above=0, most=2000)
    except ValueError as error:
        raise KeystoneError(str(error)) from None


def absolute(path: str) -> str:
    """An absolute path, independent of the server's working directory."""
    return str(Path(path).expanduser().absolute())
