"""What is raced: specifications, written as arms with alternatives."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from keystone_robotics.errors import KeystoneError
from keystone_robotics.option_values import read_items
from keystone_robotics.spec import BASELINE, Spec

#: What has won on a policy of the study (docs/tune.md): few enough arms for a budget of 1,500 episodes to find the best.
DEFAULT_SPACE = (
    "first:steps=default|2|3,temperature=1|0.6|0.4",
    "first:steps=2,temperature=1|0.6,execute=half",
    "core-mean:k=16,steps=2|3|5,temperature=1|0.8",
    "core-mean:k=16",
    "core-mean:k=16,steps=2,temperature=0.8,execute=half",
    "core-mean:k=4,steps=2|5",
    "keystone:k=16,steps=2|5",
)
#: Every combination of the free changes, and of the options of K candidates.
WIDE_SPACE = (
    "first:steps=default|1|2|3|5,temperature=1|0.8|0.6|0.4,execute=default|half",
    "keystone|core-mean:k=4|16,steps=2|3|5|default,temperature=1|0.8",
)
SPACES = {"default": DEFAULT_SPACE, "wide": WIDE_SPACE}
DEFAULT, HALF = "default", "half"
POLICY_AS_IT_IS = Spec(BASELINE)


def expand(pattern: str, execute: int | None) -> list[Spec]:
    """The specifications that an arm with alternatives stands for; ``default`` leaves an option out.

    Args:
        pattern: text of a specification in which ``|`` separates alternatives.
        execute: steps of a chunk that the policy executes: ``execute=half`` is half of them. None if it is not known.

    Raises:
        KeystoneError: if one of them is no specification.

    >>> [str(arm) for arm in expand("first:steps=default|2,execute=default|half", 8)]
    ['first', 'first:execute=4', 'first:steps=2', 'first:steps=2,execute=4']
    >>> [str(arm) for arm in expand("keystone|medoid:k=4", None)]
    ['keystone:k=4', 'medoid:k=4']
    """
    rules, _, rest = (part.strip() for part in pattern.partition(":"))
    if rest.startswith("{"):
        return [Spec.parse(pattern)]  # options as JSON, which may hold bars of its own
    try:
        items = read_items(rest) if rest else {}
    except ValueError as error:
        raise KeystoneError(f"arm {pattern!r}: {error}") from None
    columns = [_alternatives(name, text, execute) for name, text in items.items()]
    found = []
    for rule, *chosen in itertools.product([rule.strip() for rule in rules.split("|")], *columns):
        options = ",".join(filter(None, chosen))
        found.append(Spec.parse(f"{rule}:{options}" if options else rule))
    return found


def _alternatives(name: str, text: str, execute: int | None) -> list[str]:
    """``name=value`` for each value of an option; empty where it is left out."""
    if text.startswith(("{", "[", '"')):
        return [f"{name}={text}"]  # JSON as well
    found = []
    for value in (value.strip() for value in text.split("|")):
        if name == "execute" and value == HALF:
            half = 1 if execute is None else execute // 2
            found += [f"{name}={half}"] if half else []  # one step has no half
        else:
            found.append("" if value == DEFAULT else f"{name}={value}")
    return found or [""]


def arms_of(patterns: Sequence[str], execute: int, steps: int | None) -> list[Spec]:
    """All arms of a space, each once, the policy as it is first.

    Args:
        patterns: arms with alternatives.
        execute: steps of a chunk that the policy executes.
        steps: denoising steps of the policy, None if unknown: an arm that names this number is one without ``steps``.
    """
    found = {str(POLICY_AS_IT_IS): POLICY_AS_IT_IS}
    for pattern in patterns:
        for arm in expand(pattern, execute):
            if arm.steps == steps:
                arm = dataclasses.replace(arm, steps=None)
            if arm.execute == execute:
                arm = dataclasses.replace(arm, execute=None)
            found.setdefault(str(arm), arm)
    return list(found.values())


def is_free(arm: Spec) -> bool:
    """Whether an arm draws one sample: a change that costs no candidates."""
    return arm.k == 1


#: Numbers of the groups of a race.
FREE, SEVERAL = 0, 1


def neighbours_of(arms: Sequence[Spec]) -> list[list[int]]:
    """For each arm the numbers of those of its group that differ in one option.

    >>> neighbours_of([Spec.parse(text) for text in ("first", "first:steps=2", "first:steps=2,execute=4", "medoid")])
    [[1], [0, 2], [1], []]
    """
    options, groups = [arm.as_dict() for arm in arms], groups_of(arms)

    def differ(a: int, b: int) -> int:
        return sum(options[a].get(name) != options[b].get(name) for name in {*options[a], *options[b]})

    numbers = range(len(arms))
    return [[other for other in numbers if groups[other] == groups[one] and differ(one, other) == 1] for one in numbers]


def groups_of(arms: Sequence[Spec]) -> list[int]:
    """For each arm its group: one sample or K candidates. Each side has the same freedom to choose."""
    return [FREE if is_free(arm) else SEVERAL for arm in arms]
