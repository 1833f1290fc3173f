"""Command-line flags generated from `keystone.Spec`: ``--spec``, one per field, one per rule parameter."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import tyro

from keystone_robotics.option_values import Option
from keystone_robotics.spec import flag_of, options, read_options


def spec_flags(*without: str) -> Any:
    """A dataclass for tyro with a flag per option; values are strings, None if not given.

    Args:
        *without: options that the command defines itself.
    """
    kept = [(name, _flag(name, option), None) for name, option in options().items() if name not in without]
    return dataclasses.make_dataclass("SpecFlags", kept, frozen=True)


def _flag(name: str, option: Option) -> Any:
    short = [f"-{name}"] if len(name) == 1 else None
    about = tyro.conf.arg(help=option.help, metavar=name.upper(), aliases=short, help_behavior_hint="")
    return Annotated[str | None, about]


def given(flags: Any) -> dict[str, Any]:
    """The given options, parsed and validated."""
    return read_options(vars(flags), flag_of)
