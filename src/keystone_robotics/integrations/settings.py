"""What a command line or the environment says about KeyStone, and how it is applied to a policy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from keystone_robotics.attach import attach
from keystone_robotics.errors import nearest_name
from keystone_robotics.handle import Handle
from keystone_robotics.integrations.round_log import RoundLog
from keystone_robotics.options import DEFAULT_K, DEFAULT_RULE, parse_params
from keystone_robotics.select import ActionSpace
from keystone_robotics.select.metrics import check_metric
from keystone_robotics.select.rules import bind
from keystone_robotics.select.rules.base import Rule
from keystone_robotics.select.rules.checks import number, whole


@dataclass(frozen=True)
class Settings:
    """Arguments of `keystone.attach` that may have been given; None and ``{}`` mean "not given". Checked when made.

    Attributes:
        k: candidates per round, or "auto".
        rule: name of the rule.
        temperature: factor on the initial noise.
        seed: of all rounds.
        metric: "l2", "l1" or "cosine".
        fast: use a fast path, where there is one.
        compile: compile the denoising step.
        params: of the rule.

    >>> Settings(k=8).over(Settings(k=16, rule="medoid"))
    Settings(k=8, rule='medoid', temperature=None, seed=None, metric=None, fast=None, compile=None, params={})
    """

    k: int | Literal["auto"] | None = None
    rule: str | None = None
    temperature: float | None = None
    seed: int | None = None
    metric: str | None = None
    fast: bool | None = None
    compile: bool | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.k is not None and self.k != "auto":
            whole("k", self.k)
        if self.temperature is not None:
            number("temperature", self.temperature)
        if self.seed is not None:
            whole("seed", self.seed, least=0)
        if self.metric is not None:
            check_metric(self.metric)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """``KEYSTONE_K``, ``_RULE``, ``_TEMPERATURE``, ``_SEED``, ``_METRIC``, ``_FAST``, ``_COMPILE`` and ``_PARAMS``; empty
        means not given.

        >>> Settings.from_environment({"KEYSTONE_K": "8", "KEYSTONE_FAST": "false", "KEYSTONE_PARAMS": "tau=0.5"}).fast
        False
        >>> Settings.from_environment({"KEYSTONE_PARAMS": "tau=0.5, clusters=3"}).params
        {'tau': 0.5, 'clusters': 3}
        >>> Settings.from_environment({"KEYSTONE_K": "many"})
        Traceback (most recent call last):
        ValueError: KEYSTONE_K=many: expected a whole number, or auto
        """
        names = ("K", "RULE", "TEMPERATURE", "SEED", "METRIC", "FAST", "COMPILE", "PARAMS")
        elsewhere = ("LOG", "PROFILES", "UPSTREAM")  # obeyed by others of ours: no settings
        known = {"KEYSTONE_" + name for name in (*names, *elsewhere)}
        for name in environ:
            if name.startswith("KEYSTONE_") and name not in known:
                raise ValueError(f"unknown variable {name} in the environment: {nearest_name(name, known)}")

        def read(name: str, convert: Any, wanted: str) -> Any:
            text = environ.get(f"KEYSTONE_{name}", "").strip()
            if not text:
                return None
            try:
                return convert(text)
            except ValueError:
                raise ValueError(f"KEYSTONE_{name}={text}: expected {wanted}") from None

        return cls(
            k=read("K", parse_k, "a whole number, or auto"),
            rule=read("RULE", str, "a name"),
            temperature=read("TEMPERATURE", float, "a number"),
            seed=read("SEED", int, "a whole number"),
            metric=read("METRIC", str, "a name"),
            fast=read("FAST", _truth, "true or false"),
            compile=read("COMPILE", _truth, "true or false"),
            params=read("PARAMS", parse_params, 'JSON ({"tau": 0.5}) or a list (tau=0.5,clusters=3)') or {},
        )

    @property
    def given(self) -> bool:
        """Whether anything was said, so that KeyStone is wanted."""
        return self != Settings()

    def over(self, other: Settings) -> Settings:
        """These settings where given, the other's elsewhere. Parameters of a rule that is not the one in force are left out."""
        same_rule = self.rule is None or self.rule == (other.rule or DEFAULT_RULE)
        return Settings(
            k=other.k if self.k is None else self.k,
            rule=other.rule if self.rule is None else self.rule,
            temperature=other.temperature if self.temperature is None else self.temperature,
            seed=other.seed if self.seed is None else self.seed,
            metric=other.metric if self.metric is None else self.metric,
            fast=other.fast if self.fast is None else self.fast,
            compile=other.compile if self.compile is None else self.compile,
            params={**(other.params if same_rule else {}), **self.params},
        )

    def bind(self) -> Rule:
        """The rule with its parameters.

        >>> Settings(rule="mediod").bind()
        Traceback (most recent call last):
        ValueError: unknown rule 'mediod': did you mean 'medoid'? ...
        """
        return bind(self.rule or DEFAULT_RULE, self.params)

    def attach(self, policy: Any, space: ActionSpace | None = None) -> Handle:
        """`keystone.attach` with these settings; ``KEYSTONE_LOG=path`` in the environment logs every round there."""
        handle = attach(
            policy,
            k=DEFAULT_K if self.k is None else self.k,
            rule=self.bind(),
            temperature=1.0 if self.temperature is None else self.temperature,
            seed=self.seed,
            metric=self.metric or "l2",
            fast=self.fast is not False,
            compile=bool(self.compile),
            space=space,
        )
        path = os.environ.get("KEYSTONE_LOG", "").strip()
        if path:
            handle.subscribe(RoundLog(path))
        return handle


def parse_k(text: str) -> int | Literal["auto"]:
    """K from a command line or the environment.

    >>> parse_k("16"), parse_k("auto")
    (16, 'auto')
    """
    return "auto" if text == "auto" else int(text)


def _truth(text: str) -> bool:
    """What a word says.

    >>> _truth("1"), _truth("No")
    (True, False)
    """
    truths = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in truths:
        raise ValueError(text)
    return truths[text.lower()]
