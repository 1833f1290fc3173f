"""``--policy.keystone.k=16`` on any checkpoint: adds a field to LeRobot's configs and attaches policies that set it."""

import dataclasses
import functools
import logging
import os
from collections.abc import Sequence
from typing import Any

import draccus
from draccus.parsers.encoding import encode_choice, encode_dataclass
from draccus.utils import is_choice_type
from lerobot.configs import PreTrainedConfig
from lerobot.policies.pretrained import PreTrainedPolicy

from keystone_robotics.attachment import refusal
from keystone_robotics.integrations import attach_with_log
from keystone_robotics.spec import merge, options_from_environment, spec_from, variable_of
from keystone_robotics.spec import options as all_options
from lerobot_policy_keystone.configuration_keystone import KeystoneConfig
from lerobot_policy_keystone.options import KeystoneOptions

FIELD = "keystone"

log = logging.getLogger("keystone")


@dataclasses.dataclass
class _Holder:
    keystone: KeystoneOptions = dataclasses.field(default_factory=KeystoneOptions)


def install() -> str:
    """Add the field to every policy config and attach policies after construction. Returns the problem, or an empty string.

    Types that cannot be attached to get the field too, so that the error gives the reason, not "unrecognized arguments".
    """
    try:
        configs = [cls for cls in PreTrainedConfig.get_known_choices().values() if cls is not KeystoneConfig]
        for config_class in configs:
            _add_field(config_class)
        draccus.encode.register(PreTrainedConfig, _encode_without_field, include_subclasses=True)
        _patch_constructors()
        return _problem(configs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _add_field(config_class: type) -> None:
    """Add a field with a default to an existing dataclass."""
    known = config_class.__dataclass_fields__  # type: ignore[attr-defined]
    if FIELD in known:
        return
    known[FIELD] = _Holder.__dataclass_fields__[FIELD]
    config_class.__annotations__[FIELD] = KeystoneOptions
    init = config_class.__init__  # type: ignore[misc]

    @functools.wraps(init)
    def init_with_field(self: Any, *args: Any, keystone: KeystoneOptions | None = None, **kwargs: Any) -> None:
        self.keystone = keystone or KeystoneOptions()
        init(self, *args, **kwargs)

    config_class.__init__ = init_with_field  # type: ignore[misc]


def _encode_without_field(config: PreTrainedConfig, declared_type: Any = None) -> dict[str, Any]:
    """Encode a config without the field, so that checkpoints load without this plugin."""
    named = declared_type is not None and is_choice_type(declared_type)
    encoded = encode_choice(config, declared_type) if named else encode_dataclass(config, declared_type)
    encoded.pop(FIELD, None)
    return encoded


def _patch_constructors() -> None:
    """Attach to every policy after its constructor has returned; weights may be loaded later."""
    if _constructors_are_patched():
        return
    init_subclass = PreTrainedPolicy.__init_subclass__.__func__

    def init_subclass_and_patch(cls: Any, /, **kwargs: Any) -> None:
        init_subclass(cls, **kwargs)
        _attach_after_init(cls)

    PreTrainedPolicy.__init_subclass__ = classmethod(init_subclass_and_patch)
    for policy_class in _all_subclasses(PreTrainedPolicy):
        _attach_after_init(policy_class)


def _constructors_are_patched() -> bool:
    return PreTrainedPolicy.__init_subclass__.__module__ == __name__


def _all_subclasses(policy_class: type) -> list[type]:
    children: list[type] = policy_class.__subclasses__()
    return children + [found for child in children for found in _all_subclasses(child)]


def _attach_after_init(policy_class: type) -> None:
    init = vars(policy_class).get("__init__")
    if init is None:
        return

    @functools.wraps(init)
    def init_and_attach(self: Any, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        init(self, config, *args, **kwargs)
        if type(self).__init__ is init_and_attach:  # not the constructor of a base class
            _attach_if_wanted(self, config)

    policy_class.__init__ = init_and_attach  # type: ignore[misc]


def _attach_if_wanted(policy: Any, config: PreTrainedConfig) -> None:
    if isinstance(config, KeystoneConfig):  # attaches to the policy inside itself
        return
    options = getattr(config, FIELD, None) or KeystoneOptions()
    given = options.given()
    if not given and (reason := refusal(policy)):
        # Environment variables are for the whole process, and may be meant for another program: only a flag names this policy.
        if any(os.environ.get(variable_of(name), "").strip() for name in all_options()):
            log.warning("KEYSTONE_… in the environment does not apply to this %s: %s", type(policy).__name__, reason)
        return
    given = merge(given, options_from_environment())
    if given:
        attach_with_log(policy, spec_from(given))


def _problem(configs: Sequence[type]) -> str:
    """Verify `install`; returns the problem, or an empty string."""
    if not configs:
        return "it registers no policy types"
    for config_class in configs:
        if FIELD not in {field.name for field in dataclasses.fields(config_class)}:
            return f"the field was not added to {config_class.__name__}"
    encoder = draccus.encode.dispatch(PreTrainedConfig)
    if encoder is None or encoder.func is not _encode_without_field:
        return "the field cannot be excluded from saved checkpoints"
    return "" if _constructors_are_patched() else "the constructors of policies could not be patched"
