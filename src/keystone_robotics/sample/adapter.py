"""Where K-wide sampling hooks into a policy: one adapter per family, found by duck typing."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.override import SamplerOverride, objects_inside


@dataclass(frozen=True)
class Window:
    """The real dimensions and executed steps of a chunk as returned by the sampling method.

    Attributes:
        dims: real action dimensions, counted from the first; None if all are.
        start: first executed step.
        steps: number of executed steps.
        relative: dimensions that are relative to the robot's position at the beginning of the chunk; None if unknown.
    """

    dims: int | None
    start: int
    steps: int
    relative: tuple[int, ...] | None = None


class Adapter:
    """How one family of policies is sampled K wide. Subclasses are stateless.

    Attributes:
        name: of the family.
        shared_context: the part of the context that candidates share, for the documentation and the log.
        sampler: attribute path of the module whose method maps context and noise to a chunk, such as
            ``"model.action_head"``; empty for the policy itself.
        recognised_by: attributes that the module named by ``sampler`` has, by which a policy outside of LeRobot is recognised.
        override: the class that overrides this method.
        encoders: attribute paths of the methods that encode the context, such as ``"model.embed_prefix"``; timed, and counted
            by the self-check.
        steps: attribute path of the number of denoising steps, from the module named by ``sampler``, such as
            ``"config.num_steps"``, where the policy's code reads it; empty if there is none.
        steps_argument: name of the overridden method's argument that is the number of denoising steps, if it has one: the
            override passes ``Engine.steps`` in its place, if that is not None.
        steps_by_default: how many denoising steps policies of this family take by themselves, for the documentation.
        project: the project that the policies belong to.
        refusal: why policies of this family cannot be attached to; empty if they can.
        compiles: the denoising step can be compiled: the override calls it through `Engine.compiled_step`.
        padding_reason: why the real dimensions and executed steps may be unknown; the caller must then give them in ``space``.
    """

    name: ClassVar[str]
    shared_context: ClassVar[str] = ""
    sampler: ClassVar[str] = ""
    recognised_by: ClassVar[tuple[str, ...]] = ()
    override: ClassVar[type[SamplerOverride]]
    encoders: ClassVar[tuple[str, ...]] = ()
    steps: ClassVar[str] = ""
    steps_argument: ClassVar[str] = ""
    steps_by_default: ClassVar[str] = ""
    project: ClassVar[str] = "LeRobot"
    refusal: ClassVar[str] = ""
    compiles: ClassVar[bool] = False
    padding_reason: ClassVar[str] = ""

    def owns(self, policy: Any) -> bool:
        """Whether this adapter is for the object. Must not import anything."""
        if self.recognised_by:
            module = self.module(policy)
            return all(hasattr(module, name) for name in self.recognised_by)
        return getattr(policy, "name", None) == self.name and hasattr(policy, "predict_action_chunk")

    def module(self, policy: Any) -> Any:
        """The module named by `sampler`."""
        return attrgetter(self.sampler)(policy) if self.sampler else policy

    def overrides(self, policy: Any) -> Sequence[tuple[Any, type[SamplerOverride]]]:
        """All modules with an overridden method; several if a policy has several sampling loops."""
        return [(self.module(policy), self.override)]

    def encoder_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        """The methods named by `encoders`, as (object, name)."""
        return [_resolve(policy, path) for path in self.encoders]

    def steps_setting(self, policy: Any) -> tuple[Any, str] | None:
        """The number named by `steps`, as (object, name), written while the policy is called with another one; None if there
        is none, or if it is an argument.
        """
        return None if self.steps_argument or not self.steps else _resolve(self.module(policy), self.steps)

    def default_steps(self, policy: Any) -> int | None:
        """How many denoising steps the policy takes by its present settings; None if only its caller knows."""
        return int(getattr(*_resolve(self.module(policy), self.steps))) if self.steps else None

    def refuse_steps(self, policy: Any, steps: int) -> str:
        """Why this policy cannot denoise in that many steps, with what it can; empty if it can."""
        if self.steps_argument or self.steps_setting(policy) is not None:
            return ""
        return f"adapter {self.name} knows no number of denoising steps to change; leave steps out"

    def encoder_modules(self, policy: Any) -> Sequence[Any]:
        """Modules inside the overridden one that only encode; excluded when the tolerance of the fast path is derived from
        parameter dtypes.
        """
        return ()

    def step_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        """The method of one denoising step, as (object, name), if the overridden method also encodes: time before the first
        step counts as encoding.
        """
        return ()

    def cost(self, policy: Any) -> Any:
        """Cost factors besides shapes, numeric settings and the number of denoising steps, such as weights outside of torch.
        Lists, numbers and strings; part of the key of stored profiles.
        """
        return None

    def rows(self, policy: Any, observation: Any) -> int | None:
        """Batch size of an observation, if it is not the length of its first tensor; else None."""
        return None

    def device(self, policy: Any) -> str:
        """Name of the device for profiles, if it is not a torch device; else empty."""
        return ""

    def config(self, policy: Any) -> Any:
        """The argument of `window`: the policy's configuration, or another object with the robot's dimensions."""
        return getattr(policy, "config", None)

    def window(self, config: Any) -> Window | None:
        """The real dimensions and the executed steps, from the policy's current configuration.

        None outside of LeRobot: all dimensions are the robot's there, and only the client knows the executed steps.
        """
        if self.recognised_by:
            return None
        return Window(int(config.action_feature.shape[0]), 0, int(config.n_action_steps))

    def relative(self, config: Any) -> tuple[int, ...] | None:
        """Dimensions of a chunk that are relative to the robot's position at its beginning; None if unknown.

        Chunks of successive rounds cannot be compared there as they are. A configuration may name them as ``relative``.
        """
        named = getattr(config, "relative", None)
        if isinstance(named, (tuple, list)):
            return tuple(named)
        # Which joints LeRobot's relative actions exclude is known by name only.
        known = self.project == "LeRobot" and not getattr(config, "use_relative_actions", False)
        return () if known else None

    def refuse(self, policy: Any) -> str:
        """Why this policy cannot be attached to (an option it was built with); empty if it can."""
        return self.refusal


def _resolve(policy: Any, path: str) -> tuple[Any, str]:
    """The object that an attribute path leads to, and the name of its last attribute."""
    holder, _, name = path.rpartition(".")
    return (attrgetter(holder)(policy) if holder else policy), name


def find_adapter(policy: Any) -> tuple[Adapter, Any]:
    """The adapter for an object and the object it fits: the object itself or, breadth first, something inside it.

    Raises:
        KeystoneError: if none fits; never a silent fallback.
    """
    from keystone_robotics.sample.families import ADAPTERS

    if isinstance(policy, str):
        raise KeystoneError(f"{policy!r} is a str: expected a policy object, not its name")
    # Generic adapters last.
    adapters = sorted(ADAPTERS.values(), key=lambda adapter: adapter.project == "any")
    for candidate in objects_inside(policy):
        for adapter in adapters:
            if adapter.owns(candidate):
                return adapter, candidate
    supported = sorted(name for name, adapter in ADAPTERS.items() if not adapter.refusal)
    raise KeystoneError(
        f"{_misnamed(policy)}no adapter for {type(policy).__name__}. Supported: {', '.join(supported)}. Give the "
        "policy the methods encode(observation) and sample(context, noise), with these parameter names; or name the method "
        'that draws the noise and returns (B, T, D) chunks: keystone.attach(policy, site="sample_actions")'
    )


def _misnamed(policy: Any) -> str:
    """What to change in a policy that has the methods of the paper's Listing 1 with other parameters; else empty."""
    methods = getattr(policy, "encode", None), getattr(policy, "sample", None)
    try:
        given = [", ".join(inspect.signature(method).parameters) for method in methods if callable(method)]
    except (TypeError, ValueError):  # builtins and compiled modules have no signature
        return ""
    if len(given) < 2:
        return ""
    has = f"{type(policy).__name__} has encode({given[0]}) and sample({given[1]})"
    return f"{has}: name the parameters observation, context, noise, without defaults; "
