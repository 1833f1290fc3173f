"""The `keystone:` block of a server's arguments: what may stand in it, and how it is applied to a server."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.integrations.many_episodes import refuse_memory
from keystone_robotics.integrations.settings import Settings
from keystone_robotics.select import RULES, ActionSpace

_SETTINGS = tuple(one.name for one in dataclasses.fields(Settings) if one.name != "params")
_PARAMS = {parameter.name for rule in RULES.values() for parameter in dataclasses.fields(rule)} - {"previous"}
KNOWN = {*_SETTINGS, *_PARAMS, "site", "space", "rounds"}


@dataclass(frozen=True)
class ServeOptions:
    """Everything that can be said about KeyStone in a server's arguments; None means "not given".

    Attributes:
        settings: K, the rule and its parameters, temperature, seed, metric.
        site: for a policy without an adapter, the method to vectorise, seen from the server: ``_model.sample_actions``.
        space: arguments of `keystone.ActionSpace`; what it leaves open comes from the policy and the server.
        rounds: file to which every round appends a JSON line.
    """

    settings: Settings = field(default_factory=Settings)
    site: str | None = None
    space: Mapping[str, Any] | None = None
    rounds: str | None = None

    @classmethod
    def parse(cls, block: object) -> ServeOptions:
        """The options of a block: a flat mapping, parameters of the rule beside the rest.

        Raises:
            KeystoneError: for a name that is not known, or a value that cannot be.

        >>> ServeOptions.parse({"k": 8, "tau": 0.5}).settings.params
        {'tau': 0.5}
        >>> ServeOptions.parse({"rulle": "medoid"})
        Traceback (most recent call last):
        keystone_robotics.errors.KeystoneError: there is no option 'rulle': did you mean 'rule'? ...
        """
        if not isinstance(block, Mapping):
            raise KeystoneError(f"keystone={block!r} is no block of options: expected something like {{k: 16}}")
        for name in block:
            if name not in KNOWN:
                raise KeystoneError(f"there is no option {name!r}: {nearest_name(name, KNOWN)}")
        given = {str(name): value for name, value in block.items() if value is not None}
        for name in ("site", "rounds"):
            if not isinstance(given.get(name, ""), str):
                raise KeystoneError(f"{name}={given[name]!r}: expected a text")
        try:
            settings = Settings(
                **{name: given[name] for name in _SETTINGS if name in given},
                params={name: given[name] for name in sorted(_PARAMS & given.keys())},
            )
            options = cls(settings, given.get("site"), given.get("space"), given.get("rounds"))
            options.check()
        except (TypeError, ValueError) as error:
            raise KeystoneError(f"{error}") from None
        return options

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> ServeOptions:
        """``KEYSTONE_K`` and the like, see `Settings.from_environment`; ``KEYSTONE_LOG`` is the file of the rounds.

        Raises:
            KeystoneError: for a name that is not known, or a value that cannot be.

        >>> ServeOptions.from_environment({"KEYSTONE_K": "8", "KEYSTONE_LOG": "rounds.jsonl"}).block()
        {'k': 8, 'rounds': 'rounds.jsonl'}
        """
        try:
            settings = Settings.from_environment(environ)
        except (TypeError, ValueError) as error:
            raise KeystoneError(f"{error}") from None
        return cls(settings, rounds=environ.get("KEYSTONE_LOG", "").strip() or None)

    def check(self) -> None:
        """Everything that can be wrong before there is a policy."""
        refuse_memory(self.settings.bind())
        self.action_space()

    def over(self, other: ServeOptions) -> ServeOptions:
        """These options where given, the other's elsewhere."""
        return ServeOptions(
            self.settings.over(other.settings),
            other.site if self.site is None else self.site,
            other.space if self.space is None else self.space,
            other.rounds if self.rounds is None else self.rounds,
        )

    def block(self) -> dict[str, Any]:
        """The block that these options would be read from.

        >>> ServeOptions.parse({"k": 8, "tau": 0.5}).block()
        {'k': 8, 'tau': 0.5}
        """
        rest = {"site": self.site, "space": self.space and dict(self.space), "rounds": self.rounds}
        values = {name: getattr(self.settings, name) for name in _SETTINGS} | dict(self.settings.params) | rest
        return {name: value for name, value in values.items() if value is not None}

    def arguments(self) -> dict[str, Any]:
        """Of `keystone.attach`, as far as given."""
        named = {name: getattr(self.settings, name) for name in _SETTINGS if getattr(self.settings, name) is not None}
        return {**named, "rule": self.settings.bind()}

    def action_space(self) -> ActionSpace | None:
        """What counts in distances, if said.

        >>> ServeOptions(space={"dims": 7, "gripper": {"6": "logit"}}).action_space()
        ActionSpace(dims=7, steps=None, scale=None, rotation=None, gripper={6: 'logit'})
        """
        if self.space is None:
            return None
        if not isinstance(self.space, Mapping):
            raise TypeError(f"space={self.space!r}: expected arguments of ActionSpace, {{dims: 7, steps: 8}} say")
        known = [one.name for one in dataclasses.fields(ActionSpace)]
        for name in self.space:
            if name not in known:
                raise ValueError(f"space has no {name!r}: {nearest_name(name, known)}")
        return ActionSpace(**{name: _with_whole_keys(value) for name, value in self.space.items()})


def read_text(text: str, name: str) -> Any:
    """JSON from a command line.

    >>> read_text('{"dims": 7}', "--space")
    {'dims': 7}
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise KeystoneError(f"{name} {text}: expected JSON such as '{{\"dims\": 7}}' ({error})") from None


def _with_whole_keys(value: Any) -> Any:
    """Dimensions as keys: JSON can only write them as texts."""
    if isinstance(value, Mapping):
        return {int(key) if isinstance(key, str) and key.isdigit() else key: one for key, one in value.items()}
    return value


def absolute(path: str) -> str:
    """A path that means the same wherever the server is started from."""
    return str(Path(path).expanduser().absolute())
