"""Command-line flags generated from `keystone.Spec`: ``--spec``, one per field, one per rule parameter."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import tyro

from keystone_robotics.option_values import Option
from keystone_robotics.spec import flag_of, options, read_options

#: ``--arm A --arm B``, ``--arms A B`` and mixtures of both mean the same in every command, whichever is the parameter's name.
Arm = tyro.conf.UseAppendAction[
    Annotated[tuple[tuple[str, ...], ...], tyro.conf.arg(aliases=["--arms"], metavar="ARM")]
]
Arms = tyro.conf.UseAppendAction[
    Annotated[tuple[tuple[str, ...], ...], tyro.conf.arg(aliases=["--arm"], metavar="ARM")]
]

#: The same where there is one at most.
OneArm = Annotated[str | None, tyro.conf.arg(aliases=["--arms"], metavar="ARM")]


def flat(arms: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """The arms that were given, in their order.

    >>> flat((("first", "medoid:k=4"), ("core-mean",)))
    ('first', 'medoid:k=4', 'core-mean')
    """
    return tuple(name for names in arms for name in names)


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
