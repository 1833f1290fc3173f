"""How candidates are drawn and one is selected: one specification for Python, text, YAML, the environment and flags.

Everything a user can set is a field of `Spec` or a parameter of a rule. `options` lists both; text, environment variables,
YAML blocks and the flags of every command are generated from that list.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from keystone_robotics.errors import KeystoneError, nearest_name, shorten
from keystone_robotics.option_values import (
    WINDOWS,
    Check,
    Option,
    check_count,
    check_dimension,
    check_distance,
    check_execute,
    check_flag,
    check_k,
    check_noise_seed,
    check_rule,
    check_space,
    check_temperature,
    check_window,
    option,
    read_flag,
    read_items,
    read_params,
    read_value,
    write_space,
    write_value,
)
from keystone_robotics.select import ActionSpace
from keystone_robotics.select.agreement import AdaptiveRange
from keystone_robotics.select.metrics import METRICS
from keystone_robotics.select.rules import RULES, Rule, bind
from keystone_robotics.select.rules.base import FunctionRule

log = logging.getLogger("keystone")

DEFAULT_K = 16
DEFAULT_RULE = "keystone"  #: the paper's
#: docs/study.md says what was measured with it, and on which workloads.
RECOMMENDED_RULE = "core-mean"
#: The policy as it is: its first candidate, so by default it draws one.
BASELINE = "first"

PREFIX = "KEYSTONE_"
#: Variables of KeyStone that are no options: what listens to rounds, stored profiles, checkouts for tests.
OTHER_VARIABLES = ("KEYSTONE_ALARM", "KEYSTONE_LOG", "KEYSTONE_PROFILES", "KEYSTONE_RERUN", "KEYSTONE_UPSTREAM")
#: What Kubernetes sets in every container for services called keystone or keystone-….
_OF_KUBERNETES = re.compile(
    PREFIX + r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?)"
)


@dataclass(frozen=True)
class Spec:
    """How candidates are drawn and one is selected.

    In Python `keystone.attach(policy, Spec("core-mean", k=16))`, or the same as text, ``"core-mean:k=16"``. A field that is
    added here becomes an option of every command, file and environment variable.

    >>> spec = Spec.parse("core-mean:k=16,temperature=0.8")
    >>> spec
    Spec('core-mean:k=16,temperature=0.8')
    >>> spec.replace(rule="keystone", tau=0.5).as_dict()
    {'rule': 'keystone', 'k': 16, 'temperature': 0.8, 'tau': 0.5}
    >>> str(Spec("medoid")), str(Spec("first")), str(Spec(space=ActionSpace(dims=7)))
    ('medoid:k=16', 'first', 'keystone:k=16,space={"dims":7}')
    >>> Spec.parse("keystone:temprature=0.6")
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: spec 'keystone:temprature=0.6': there is no option 'temprature': did you mean ...
    """

    rule: Any = option(  # noqa: RUF009
        DEFAULT_RULE, f"rule that selects: {', '.join(RULES)}; in Python also a function or a Scored", check_rule, str
    )
    k: int | str = option(
        None,
        f"candidates per round, auto, or 4..16: four, and the rest where they disagree (default {DEFAULT_K}, 1 for rule "
        f"{BASELINE}); 1 runs the policy's own code",
        check_k,
    )
    steps: int | None = option(None, "denoising steps of each candidate (default: the policy's)", check_count)
    temperature: float = option(1.0, "factor on the initial noise (default 1)", check_temperature)
    seed: int | None = option(None, "seed of the noise (default: torch's generator)", check_noise_seed)
    metric: str = option("l2", f"distance between chunks: {', '.join(METRICS)} (default l2)", check_distance, str)
    window: str = option(
        WINDOWS[0], "steps that count in distances: executed (default), or all of the chunk", check_window, str
    )
    gripper: int | None = option(
        None, "action dimension of a gripper, which is open or closed: its sign counts, and votes", check_dimension
    )
    execute: int | str | None = option(
        None,
        "steps of a chunk that are executed before the next round (default: the policy's); auto or 2..8: as many as the "
        "candidates agree on",
        check_execute,
    )
    space: ActionSpace | None = option(  # noqa: RUF009
        None, 'what counts in distances, arguments of ActionSpace: {"dims": 7, "steps": 8}', check_space, hash=False
    )
    fast: bool = option(
        True, "draw on a fast path where the self-check finds it exact (default true)", check_flag, read_flag
    )
    compile: bool = option(False, "compile the denoising step (default false)", check_flag, read_flag)
    #: Parameters of the rule as sorted pairs; may be given as a mapping.
    params: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        values = {
            one.name: one.metadata["option"].check(one.name, getattr(self, one.name))
            for one in fields(self)
            if "option" in one.metadata
        }
        rule, params = _named_rule(values["rule"], dict(self.params))
        if values["k"] is None:
            values["k"] = 1 if rule == BASELINE else DEFAULT_K
        values |= {"rule": rule, "params": tuple(sorted(_check_params(rule, params).items()))}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.action_space()  # raises where `space` contradicts `window` or `gripper`
        if self.execute_range is not None:
            _check_adaptive_horizon(self)

    @classmethod
    def parse(cls, text: str) -> Spec:
        """From ``rule`` or ``rule:name=value,…``; names that are no fields are parameters of the rule.

        Raises:
            KeystoneError: if the text is none of a specification.
        """
        try:
            return cls.from_mapping(options_from_text(text))
        except (ValueError, TypeError, KeystoneError) as error:
            raise KeystoneError(f"spec {shorten(text, 300)!r}: {shorten(str(error))}") from None

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Spec:
        """From options by name, as in YAML: fields, and parameters of the rule beside them. None means not given.

        Raises:
            ValueError, TypeError: about the first option that is wrong.

        >>> Spec.from_mapping({"rule": "density", "neighbours": 3, "space": {"dims": 7}})
        Spec('density:k=16,space={"dims":7},neighbours=3')
        """
        values = merge(given)
        rule = values.get("rule", DEFAULT_RULE)
        own = {name: values.pop(name) for name in _field_names() if name in values}
        if isinstance(rule, str):
            bind(rule, {})
            for name in values:
                check_name(name, rule)
        return cls(**own, params=tuple(values.items()))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Spec:
        """From ``KEYSTONE_K``, ``KEYSTONE_RULE`` and so on, see `options_from_environment`.

        >>> Spec.from_environment({"KEYSTONE_K": "8", "KEYSTONE_FAST": "no", "KEYSTONE_PARAMS": "tau=0.5"})
        Spec('keystone:k=8,fast=false,tau=0.5')
        """
        return spec_from(options_from_environment(environ))

    @classmethod
    def of(cls, spec: Spec | str | None = None, /, **options: Any) -> Spec:
        """A specification or its text, with options over it; from the options alone if it is None."""
        if spec is None:
            return cls.from_mapping(options)
        if isinstance(spec, str):
            spec = cls.parse(spec)
        if not isinstance(spec, Spec):
            raise TypeError(f"{spec!r}: expected a keystone.Spec or its text, 'core-mean:k=16'; K alone is k=16")
        return spec.replace(**options) if options else spec

    def replace(self, **options: Any) -> Spec:
        """With other options. Another rule starts from its own parameters."""
        return type(self).from_mapping(merge(options, self.as_dict()))

    def as_dict(self) -> dict[str, Any]:
        """What `from_mapping` reads, of JSON's types: the rule, K, and what is not default."""
        values: dict[str, Any] = {"rule": self.rule}
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            is_default = (self.rule, value) == (BASELINE, 1) if one.name == "k" else value == one.default
            if not is_default and one.name != "params":
                values[one.name] = write_space(value) if isinstance(value, ActionSpace) else value
        return {**values, **dict(self.params)}

    def __str__(self) -> str:
        """The shortest text that `parse` reads as this; a rule that is a function has no more than its name there."""
        values = self.as_dict()
        rule = values.pop("rule")
        name = rule if isinstance(rule, str) else bind(rule, dict(self.params)).name
        return name + (":" + ",".join(f"{key}={write_value(value)}" for key, value in values.items()) if values else "")

    def __repr__(self) -> str:
        return f"Spec({str(self)!r})"

    @property
    def k_range(self) -> AdaptiveRange | None:
        """Adaptive K; None if K is a number or "auto"."""
        return None if self.k == "auto" else AdaptiveRange.parse(self.k)

    @property
    def most_k(self) -> int | None:
        """The most candidates of a round; None for "auto".

        >>> Spec(k="4..16").most_k, Spec(k=8).most_k, Spec(k="auto").most_k
        (16, 8, None)
        """
        span = self.k_range
        return span.most if span is not None else None if self.k == "auto" else int(self.k)

    @property
    def execute_range(self) -> AdaptiveRange | None:
        """The adaptive horizon; None if it is fixed."""
        return AdaptiveRange.parse(self.execute)

    @property
    def most_steps(self) -> int | None:
        """The most steps of a chunk that are executed; None for the policy's own number.

        >>> Spec(execute="2..8").most_steps, Spec(execute=8).most_steps, Spec(execute="auto").most_steps
        (8, 8, None)
        """
        span = self.execute_range
        return span.most if span is not None else None if self.execute is None else int(self.execute)

    def bind(self) -> Rule:
        """The rule with its parameters."""
        return bind(self.rule, dict(self.params))

    def action_space(self) -> ActionSpace | None:
        """What counts in distances, as far as this says; the rest comes from the policy.

        >>> Spec(window="chunk", gripper=6).action_space()
        ActionSpace(dims=None, steps=slice(None, None, None), scale=None, rotation=None, gripper={6: 0.0})
        """
        said: dict[str, Any] = {}
        if self.window == "chunk":
            said["steps"] = slice(None)
        if self.gripper is not None:
            said["gripper"] = {self.gripper: 0.0}  # actions are normalised: 0 lies between open and closed
        if self.space is None:
            return ActionSpace(**said) if said else None
        for own, name in (("window", "steps"), ("gripper", "gripper")):
            if name in said and getattr(self.space, name) is not None:
                raise ValueError(f"{own}={getattr(self, own)!r}: space names {name} as well; give one of the two")
        return dataclasses.replace(self.space, **said)


def _check_adaptive_horizon(spec: Spec) -> None:
    if spec.k in (1, "auto"):
        why = "one candidate cannot disagree" if spec.k == 1 else "K may turn out as 1, which cannot disagree"
        raise ValueError(f"execute={spec.execute} with k={spec.k}: {why}; expected k=2 or more")
    if spec.bind().remembers:
        raise ValueError(
            f"execute={spec.execute} with rule {spec.bind().name}, which looks back at the steps after those executed: "
            "expected the same number of steps in every round"
        )


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool, type(None)))


def _named_rule(rule: Any, params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A rule that was given as an object, as its name in `RULES` or its function, and its parameters, where it has these."""
    if isinstance(rule, FunctionRule) and not params:
        return rule.function, dict(rule.params)
    if not isinstance(rule, Rule) or RULES.get(rule.name) is not type(rule) or params:
        return rule, params
    said = {one.name: getattr(rule, one.name) for one in fields(rule)}
    return (rule.name, said) if all(map(_is_plain, said.values())) else (rule, {})


def _check_params(rule: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Of a rule with a name: numbers and names other than the defaults, so that equal specifications have equal texts."""
    if not isinstance(rule, str):
        bound = bind(rule, params)
        if isinstance(bound, FunctionRule):
            _refuse_names_of_fields(bound.name, bound.names)
        return params
    params = {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
    for name, value in params.items():
        if not _is_plain(value):
            raise ValueError(f"{name}={value!r}: expected a number or a name")
    known = {one.name: one.default for one in fields(bind(rule, params))}
    params = {name: float(value) if isinstance(known[name], float) else value for name, value in params.items()}
    return {name: value for name, value in params.items() if value != known[name]}


def _refuse_names_of_fields(rule: str, names: Iterable[str]) -> None:
    for name in set(names) & {*_field_names(), "spec", "params"}:
        raise ValueError(
            f"rule {rule!r} has a parameter {name!r}, which is an option of every rule: give it another name"
        )


# ---- options from several sources


def _field_names() -> list[str]:
    return [one.name for one in fields(Spec) if one.name != "params"]


def rule_parameters() -> dict[str, list[type[Rule]]]:
    """The parameters that can be given as text, by name, and the rules that have them."""
    found: dict[str, list[type[Rule]]] = {}
    for rule in RULES.values():
        _refuse_names_of_fields(rule.name, (one.name for one in fields(rule)))
        for one in fields(rule):
            if one.type not in ("Any", Any):
                found.setdefault(one.name, []).append(rule)
    return found


def options() -> dict[str, Option]:
    """Everything that can be set, by name: a whole specification as text, the fields of `Spec`, parameters of rules.

    >>> [name for name in options() if name not in rule_parameters()]  # doctest: +ELLIPSIS
    ['spec', 'rule', 'k', 'steps', ..., 'params']
    """
    found = {"spec": Option("all at once, core-mean:k=16,temperature=0.8; single options go over it", _check_text, str)}
    found |= {one.name: one.metadata["option"] for one in fields(Spec) if "option" in one.metadata}
    found["params"] = Option("parameters of the rule, tau=0.5,clusters=3 or JSON", _check_mapping, read_params)
    for name, rules in rule_parameters().items():
        help = f"{', '.join(rule.name for rule in rules)}: {_documented(name, rules)}"
        is_flag = isinstance(getattr(rules[0], name, None), bool)
        found[name] = Option(help, _check_parameter(rules), read_flag if is_flag else read_value)
    return found


def _documented(name: str, rules: list[type[Rule]]) -> str:
    """What the docstring of the first of these rules that explains a parameter says about it."""
    for rule in rules:
        if found := re.search(rf"^ +{name}: (.+(?:\n {{12,}}.+)*)", rule.__doc__ or "", re.MULTILINE):
            return " ".join(found[1].split()).rstrip(".")
    return "parameter of the rule"


def _check_text(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: expected text such as core-mean:k=16")
    try:
        Spec.from_mapping(options_from_text(value))
    except (ValueError, TypeError, KeystoneError) as error:
        raise ValueError(f"{name}={value!r}: {error}") from None
    return value


def _check_mapping(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}={value!r}: expected names and values, tau=0.5,clusters=3 say")
    return value


def _check_parameter(rules: list[type[Rule]]) -> Check:
    def check(name: str, value: Any) -> Any:
        *others, last = rules
        for rule in others:
            with contextlib.suppress(TypeError, ValueError):
                rule(**{name: value})
                return value
        last(**{name: value})
        return value

    return check


def check_name(name: Any, rule: str = "") -> None:
    """Refuse what is no option.

    Raises:
        TypeError: with the nearest one.
    """
    known = {*_field_names(), "spec", "params"}
    parameters = rule_parameters()
    if name not in known and name not in parameters:
        own = {one.name for one in fields(RULES[rule])} if rule in RULES else set(parameters)
        if name not in own:  # of a type that has no text
            raise TypeError(f"there is no option {name!r}: {nearest_name(name, known | own)}")


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Options of several sources as one flat mapping; the first source goes over the others.

    Fields that are None count as not given, and parameters of a rule that another source replaced are left out.

    >>> merge({"k": 8}, {"rule": "kde", "bandwidth": 0.1, "k": 4})
    {'rule': 'kde', 'bandwidth': 0.1, 'k': 8}
    >>> merge({"rule": "medoid"}, {"rule": "kde", "bandwidth": 0.1, "k": 4})
    {'rule': 'medoid', 'k': 4}
    """
    names, parameters, merged = _field_names(), rule_parameters(), dict[str, Any]()
    for layer in reversed(layers):
        given = {name: value for name, value in layer.items() if value is not None or name in parameters}
        text, params = given.pop("spec", None), given.pop("params", None) or {}
        if text is not None:
            _check_text("spec", text)
        given = {**_check_mapping("params", params), **given}
        for one in (given,) if text is None else (options_from_text(text), given):
            if one.get("rule", merged.get("rule", DEFAULT_RULE)) != merged.get("rule", DEFAULT_RULE):
                merged = {name: value for name, value in merged.items() if name in names}
            merged.update(one)
    return merged


def spec_from(*layers: Mapping[str, Any]) -> Spec:
    """The specification of options that users gave, see `merge`.

    Raises:
        KeystoneError: if one of them is wrong.
    """
    try:
        return Spec.from_mapping(merge(*layers))
    except (TypeError, ValueError) as error:
        raise KeystoneError(shorten(str(error))) from None


def read_options(texts: Mapping[str, Any], label: Callable[[str], str] = str) -> dict[str, Any]:
    """Options from flags or variables: texts, or values that a parser made of them; None and blanks were not given.

    Args:
        texts: by name.
        label: how the user wrote a name, for errors.

    Raises:
        KeystoneError: about the first text that cannot be read.

    >>> read_options({"k": "8", "seed": None, "fast": "no"})
    {'k': 8, 'fast': False}
    >>> read_options({"k": "many"}, "--{}".format)
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: --k=many: expected a whole number, "auto", or a range such as 4..16
    """
    known, given = options(), dict[str, Any]()
    for name, text in texts.items():
        if text is None or (isinstance(text, str) and not text.strip()):
            continue
        value = text
        try:
            value = known[name].read(text.strip()) if isinstance(text, str) else text
            given[name] = known[name].check(name, value)
        except (TypeError, ValueError) as error:
            reason = str(error).removeprefix(f"{name}={value!r}: ")
            raise KeystoneError(f"{label(name)}={shorten(str(text), 300)}: {shorten(reason)}") from None
    return given


def options_from_text(text: str) -> dict[str, Any]:
    """The options that a specification's text names.

    >>> options_from_text("core-mean:k=auto")
    {'rule': 'core-mean', 'k': 'auto'}
    """
    rule, _, rest = (part.strip() for part in text.partition(":"))
    items = read_items(rest) if rest else {}
    for name in items:
        check_name(name, rule)
    known = options()
    return {
        "rule": rule,
        **{
            name: known[name].read(item) if isinstance(item, str) and name in known else item
            for name, item in items.items()
        },
    }


def options_from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """``KEYSTONE_K``, ``KEYSTONE_RULE``, … for each of `options`; blank means not given.

    A variable that is one typo away from an option is an error. Others that begin with ``KEYSTONE_`` are not KeyStone's
    (OpenStack uses the name, too): they are ignored, with one warning. For those of Kubernetes, which sets
    ``KEYSTONE_SERVICE_HOST`` for a service called keystone, there is none.

    Raises:
        KeystoneError: about the first variable that cannot be read.

    >>> options_from_environment({"KEYSTONE_K": "0"})
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: KEYSTONE_K=0: expected a whole number, 1 or more
    """
    known = {variable_of(name): name for name in options()}
    names = [*known, *OTHER_VARIABLES]
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in names)
    unknown = [name for name in unknown if not _OF_KUBERNETES.fullmatch(name)]
    for variable in unknown:
        _refuse_typo(variable, names)
    if unknown:
        _warn_ignored(", ".join(unknown))
    return read_options({name: environ.get(variable) for variable, name in known.items()}, variable_of)


def flag_of(name: str) -> str:
    """The flag of an option.

    >>> flag_of("max_noise")
    '--max-noise'
    """
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of an option.

    >>> variable_of("temperature")
    'KEYSTONE_TEMPERATURE'
    """
    return PREFIX + name.upper()


def _refuse_typo(variable: str, known: list[str]) -> None:
    meant = next((name for name in known if _one_typo_apart(variable[len(PREFIX) :], name[len(PREFIX) :])), None)
    if meant is not None:
        raise KeystoneError(f"{variable} in the environment is no option: did you mean {meant}?")


@functools.cache  # once, though a command reads the environment for every policy it makes
def _warn_ignored(variables: str) -> None:
    log.warning("ignored, since these variables in the environment are no options of KeyStone: %s", variables)


def _one_typo_apart(given: str, name: str) -> bool:
    """Whether one letter was left out, added, exchanged with the next or, in a name of five letters or more, replaced.

    Short names have neighbours of other meanings: TAU and TAG.

    >>> [_one_typo_apart(given, name) for given, name in [("KK", "K"), ("RUEL", "RULE"), ("TAG", "TAU"), ("PORT", "K")]]
    [True, True, False, False]
    """
    rest = name
    while given and rest and given[0] == rest[0]:
        given, rest = given[1:], rest[1:]
    while given and rest and given[-1] == rest[-1]:
        given, rest = given[:-1], rest[:-1]
    if len(given) + len(rest) == 1 or (len(given) == 2 and given == rest[::-1]):
        return True
    return len(given) == len(rest) == 1 and len(name) >= 5
