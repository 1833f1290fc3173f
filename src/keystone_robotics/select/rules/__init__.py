"""The rules by name. Each is one short file; the registry is a plain dict, and a new entry is a new rule."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from keystone_robotics.errors import nearest_name
from keystone_robotics.select.rules.base import FunctionRule, RoundRule, Rule
from keystone_robotics.select.rules.cluster_mean import ClusterMean
from keystone_robotics.select.rules.cluster_medoid import ClusterMedoid
from keystone_robotics.select.rules.coherent import Coherent
from keystone_robotics.select.rules.core_mean import CoreMean
from keystone_robotics.select.rules.density import Density
from keystone_robotics.select.rules.first import First
from keystone_robotics.select.rules.kde import KernelDensity
from keystone_robotics.select.rules.keystone import Keystone
from keystone_robotics.select.rules.mean import Mean
from keystone_robotics.select.rules.medoid import Medoid
from keystone_robotics.select.rules.scored import Scored
from keystone_robotics.select.rules.trimmed_mean import TrimmedMean

#: Every rule by name; the values are frozen dataclasses of the rule's parameters.
RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Keystone, ClusterMedoid, Medoid, Density, KernelDensity, Coherent, First, Mean, ClusterMean, TrimmedMean, CoreMean,
    )
}  # fmt: skip

__all__ = ["RULES", "RoundRule", "Rule", "Scored", "bind"]


def bind(rule: str | Callable[..., Any] | Rule, params: Mapping[str, Any]) -> Rule:
    """A rule with its parameters, checked.

    >>> bind("keystone", {"tau": 0.5})
    Keystone(tau=0.5, clusters=2, iterations=10, init='random')
    >>> bind("keystone", {"tua": 0.5})
    Traceback (most recent call last):
    TypeError: rule 'keystone' has no parameter 'tua': did you mean 'tau'? Known: clusters, init, iterations, tau
    """
    if isinstance(rule, str):
        return _made(_named(rule), params) if params else _with_defaults(_named(rule))
    if isinstance(rule, type) and issubclass(rule, Rule):
        return _made(rule, params)
    if isinstance(rule, Rule):
        if params:
            raise TypeError(f"rule {rule!r} has its parameters already; {sorted(params)} cannot be added")
        return rule
    if callable(rule) and not isinstance(rule, type):
        return FunctionRule(rule, dict(params))
    raise TypeError(f"rule={rule!r}: expected a name or a function. {nearest_name(rule, RULES)}")


def _named(name: str) -> type[Rule]:
    if name not in RULES:
        raise ValueError(f"unknown rule {name!r}: {nearest_name(name, RULES)}")
    return RULES[name]


@functools.lru_cache(maxsize=64)
def _with_defaults(rule: type[Rule]) -> Rule:
    return rule()


def _made(rule: type[Rule], params: Mapping[str, Any]) -> Rule:
    known = [field.name for field in dataclasses.fields(rule)]
    for name in params:
        if name not in known:
            raise TypeError(
                f"rule {rule.name!r} has no parameter {name!r}: {nearest_name(name, known) if known else 'it has none'}"
            )
    return rule(**params)
