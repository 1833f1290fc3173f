"""Where K-wide sampling goes into a policy: one adapter per family, found by the shape of the object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.override import SamplerOverride, objects_inside


@dataclass(frozen=True)
class Window:
    """Which part of a chunk, as the sampling method returns it, is real and executed.

    Attributes:
        dims: real action dimensions, counted from the first; None if all are.
        start: first executed step.
        steps: number of executed steps.
    """

    dims: int | None
    start: int
    steps: int


class Adapter:
    """How one family of policies is sampled K wide. Subclasses are stateless.

    Attributes:
        name: of the family.
        shared_context: what of the context the candidates share, for the documentation and the log.
        sampler: where in the policy the module is whose method maps context and noise to a chunk, ``"model.action_head"`` say;
            empty if it is the policy itself.
        override: the class that overrides this method.
        encoders: the methods that encode the context, ``"model.embed_prefix"`` say; timed, and counted by the self-check.
        project: whose policies these are.
        refusal: why a policy of this family cannot be attached to, if so.
        compiles: its denoising step can be compiled, because the override calls it through `Engine.compiled_step`.
        padding_reason: why a chunk of this family does not tell its real dimensions and executed steps, if so: the caller's
            ``space`` has to say then what the window leaves open.
    """

    name: ClassVar[str]
    shared_context: ClassVar[str] = ""
    sampler: ClassVar[str] = ""
    override: ClassVar[type[SamplerOverride]]
    encoders: ClassVar[tuple[str, ...]] = ()
    project: ClassVar[str] = "LeRobot"
    refusal: ClassVar[str] = ""
    compiles: ClassVar[bool] = False
    padding_reason: ClassVar[str] = ""

    def owns(self, policy: Any) -> bool:
        """Whether this adapter is for the object. Must not import anything."""
        return getattr(policy, "name", None) == self.name and hasattr(policy, "predict_action_chunk")

    def module(self, policy: Any) -> Any:
        """The one that `sampler` names."""
        return attrgetter(self.sampler)(policy) if self.sampler else policy

    def overrides(self, policy: Any) -> Sequence[tuple[Any, type[SamplerOverride]]]:
        """Every module with an overridden method; more than one where a policy has several loops."""
        return [(self.module(policy), self.override)]

    def encoder_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        """Those that `encoders` name, as (object, name)."""
        paths = [path.rpartition(".") for path in self.encoders]
        return [(attrgetter(holder)(policy) if holder else policy, name) for holder, _, name in paths]

    def encoder_modules(self, policy: Any) -> Sequence[Any]:
        """Modules inside the overridden one that only encode; excluded when the tolerance of the fast path is derived from
        parameter dtypes.
        """
        return ()

    def step_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        """The method that makes one denoising step, as (object, name), where the overridden method also encodes: everything
        before the first step counts as encoding.
        """
        return ()

    def cost(self, policy: Any) -> Any:
        """What a round's cost depends on besides shapes and numeric settings: the number of denoising steps, weights that are
        not torch's. Lists, numbers and texts; stored profiles hold where it is equal.
        """
        return None

    def rows(self, policy: Any, observation: Any) -> int | None:
        """B of an observation as the policy is called with it, where that is not the length of its first tensor; else None."""
        return None

    def device(self, policy: Any) -> str:
        """What the policy runs on, for profiles, where that is not a device of torch's; else an empty text."""
        return ""

    def config(self, policy: Any) -> Any:
        """Where `window` looks: the policy's configuration, or whatever of it knows the robot."""
        return getattr(policy, "config", None)

    def window(self, config: Any) -> Window | None:
        """The real dimensions and the executed steps, from the policy's own configuration as it is now."""
        return Window(int(config.action_feature.shape[0]), 0, int(config.n_action_steps))

    def refuse(self, policy: Any) -> str:
        """Why this very policy cannot be attached to (an option it was built with), or an empty string."""
        return self.refusal


def find_adapter(policy: Any) -> tuple[Adapter, Any]:
    """The adapter for an object and the object it fits: the object itself or, breadth first, something inside it.

    Raises:
        KeystoneError: if none fits; never a silent fallback.
    """
    from keystone_robotics.sample.families import ADAPTERS

    # Those for one family first, wherever they were registered: what fits any policy is the last resort.
    adapters = sorted(ADAPTERS.values(), key=lambda adapter: adapter.project == "any")
    for candidate in objects_inside(policy):
        for adapter in adapters:
            if adapter.owns(candidate):
                return adapter, candidate
    supported = sorted(name for name, adapter in ADAPTERS.items() if not adapter.refusal)
    raise KeystoneError(
        f"no adapter knows a {type(policy).__name__}. Supported: {', '.join(supported)}. A policy of your own "
        "needs the methods encode(observation) and sample(context, noise), its parameters named so; or name the method that "
        'draws the noise and returns (B, T, D) chunks: keystone.attach(policy, site="sample_actions")'
    )
