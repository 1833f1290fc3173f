"""An arm of an evaluation: one way to choose, with everything that it changes about the policy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keystone_robotics.attach import attach
from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.handle import Handle
from keystone_robotics.options import DEFAULT_K, parse_params
from keystone_robotics.select import ActionSpace
from keystone_robotics.select.metrics import check_metric
from keystone_robotics.select.rules import RULES, Rule, bind
from keystone_robotics.select.rules.checks import number, whole

BASELINE = "first"
WINDOWS = ("executed", "chunk")
OWN = (
    "k",
    "temperature",
    "metric",
    "window",
    "gripper",
    "execute",
)  #: what can be said about an arm besides its rule's parameters


def _is_float(rule: Rule, name: str, value: Any) -> bool:
    """Whether a whole number was given for a parameter that need not be whole."""
    default = next(field.default for field in dataclasses.fields(rule) if field.name == name)
    return isinstance(default, float) and not isinstance(value, bool) and isinstance(value, int)


@dataclass(frozen=True)
class Arm:
    """How candidates are drawn and one is chosen.

    Attributes:
        rule: name of the rule; "first" is the policy as it is.
        k: candidates per round.
        temperature: factor on the initial noise.
        metric: "l2", "l1" or "cosine".
        window: the steps that count in distances: those that are "executed", or the whole "chunk".
        gripper: dimension of the action that opens or closes, and is compared and averaged as such; None if it is a number
            like the others.
        execute: steps of a chunk that are executed; None is the run's number.
        params: of the rule, as sorted pairs.

    >>> Arm.parse("keystone:k=16,tau=0.5").params
    (('tau', 0.5),)
    >>> str(Arm.parse("first:temperature=0.6")), str(Arm.parse("medoid"))
    ('first:temperature=0.6', 'medoid:k=16')
    >>> Arm.parse("keystone:temprature=0.6")
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: arm 'keystone:temprature=0.6': ...
    """

    rule: str
    k: int
    temperature: float = 1.0
    metric: str = "l2"
    window: str = WINDOWS[0]
    gripper: int | None = None
    execute: int | None = None
    params: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        whole("k", self.k)
        number("temperature", self.temperature)
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature!r}: expected a finite number, 0 or more")
        if self.execute is not None:
            whole("execute", self.execute)
        if self.gripper is not None:
            whole("gripper", self.gripper, least=0)
        check_metric(self.metric)
        if self.window not in WINDOWS:
            raise ValueError(f"window={self.window!r}: {nearest_name(self.window, WINDOWS)}")
        for name, value in self.params:
            if not isinstance(value, (str, int, float, bool, type(None))):
                raise ValueError(f"{name}={value!r}: expected a number or a name")
        bound = bind(self.rule, dict(self.params))
        # 1 and 1.0 are the same arm, and have the same name in the store.
        object.__setattr__(self, "temperature", float(self.temperature))
        alike = (float(value) if _is_float(bound, name, value) else value for name, value in self.params)
        object.__setattr__(self, "params", tuple(zip((name for name, _ in self.params), alike)))

    @classmethod
    def parse(cls, text: str) -> Arm:
        """From ``rule`` or ``rule:name=value,…``; names that are not an arm's own belong to the rule."""
        rule, _, rest = text.partition(":")
        try:
            return cls.make(rule.strip(), parse_params(rest) if rest.strip() else {})
        except (ValueError, TypeError) as error:
            raise KeystoneError(f"arm {text!r}: {error}") from None

    @classmethod
    def make(cls, rule: str, given: Mapping[str, Any]) -> Arm:
        """From a rule's name and everything that was said about it."""
        if rule not in RULES:
            raise ValueError(f"unknown rule {rule!r}: {nearest_name(rule, RULES)}")
        params = dict(given)
        own = {name: params.pop(name) for name in OWN if name in params}
        known = {field.name for field in dataclasses.fields(RULES[rule])}
        for name in params:
            if name not in known:
                raise ValueError(f"rule {rule!r} has no option {name!r}: {nearest_name(name, {*known, *OWN})}")
        return cls(rule, **{"k": 1 if rule == BASELINE else DEFAULT_K, **own}, params=tuple(sorted(params.items())))

    def __str__(self) -> str:
        """The shortest text that `parse` reads as this arm."""
        said: list[tuple[str, Any]] = []
        if (self.rule, self.k) != (BASELINE, 1):
            said.append(("k", self.k))
        if self.temperature != 1.0:
            said.append(("temperature", self.temperature))
        if self.metric != "l2":
            said.append(("metric", self.metric))
        if self.window != WINDOWS[0]:
            said.append(("window", self.window))
        if self.gripper is not None:
            said.append(("gripper", self.gripper))
        if self.execute is not None:
            said.append(("execute", self.execute))
        said += self.params
        parts = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in said]
        return self.rule + (":" + ",".join(parts) if parts else "")

    def attach(self, policy: Any, check: bool) -> Handle:
        """`keystone.attach` as this arm says. Noise follows from the seeds that the evaluation gives each round."""
        return attach(
            policy,
            k=self.k,
            rule=bind(self.rule, dict(self.params)),
            temperature=self.temperature,
            metric=self.metric,
            space=self._space(),
            check=check,
        )

    def _space(self) -> ActionSpace | None:
        """What the arm says about distances; the rest comes from the policy."""
        steps = slice(None) if self.window == "chunk" else None
        # The sampler's actions are normalised, so that 0 lies between an open and a closed gripper.
        gripper = None if self.gripper is None else {self.gripper: 0.0}
        return None if steps is None and gripper is None else ActionSpace(steps=steps, gripper=gripper)
