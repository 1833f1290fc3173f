"""Where K-wide sampling goes into a policy: one adapter per family, found by the shape of the object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.hook import Hook
from keystone_robotics.sample.session import Session
from keystone_robotics.sample.shadow import class_instead

#: Attributes through which servers and wrappers hold the policy, and policies hold their model.
_INNER = (
    "_policy", "policy", "_framework", "_model", "model", "inner", "module", "_orig_mod", "action_head", "action_model",
)  # fmt: skip


class Seam:
    """Base of the classes that override a module's sampling method; the session is put on the module by `swap_in`."""

    _keystone: Session

    if TYPE_CHECKING:  # whatever the module has: the seam stands in front of its class

        def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Window:
    """Which part of a chunk, as the seam returns it, is real and executed.

    Attributes:
        dims: real action dimensions, counted from the first; None if all are.
        start: first executed step.
        steps: number of executed steps.
    """

    dims: int | None
    start: int
    steps: int


class Adapter:
    """How one family of policies is sampled K wide. Subclasses are stateless; one short file each.

    Attributes:
        name: of the family.
        shares: what of the context the candidates share, for the documentation and the log.
        seam: the class that overrides the sampling method.
        home: whose policies these are.
        refusal: why a policy of this family cannot be attached to, if so.
        compiles: its denoising step can be compiled, because the seam calls it through `Session.step`.
        padded: why a chunk of this family does not tell its real dimensions and executed steps, if so: a window that leaves
            them open then has to be completed by the caller's ``space``.
    """

    name: ClassVar[str]
    shares: ClassVar[str] = ""
    seam: ClassVar[type[Seam]]
    home: ClassVar[str] = "LeRobot"
    refusal: ClassVar[str] = ""
    compiles: ClassVar[bool] = False
    padded: ClassVar[str] = ""

    def owns(self, policy: Any) -> bool:
        """Whether this adapter is for the object. Must not import anything."""
        return getattr(policy, "name", None) == self.name and hasattr(policy, "predict_action_chunk")

    def module(self, policy: Any) -> Any:
        """The module whose class is swapped: the one whose method maps context and noise to a chunk."""
        raise NotImplementedError

    def seams(self, policy: Any) -> Sequence[tuple[Any, type[Seam]]]:
        """Every module whose class is swapped, with its seam; more than one where a policy has several loops."""
        return [(self.module(policy), self.seam)]

    def encoders(self, policy: Any) -> Sequence[tuple[Any, str]]:
        """The methods that encode the context, as (object, name); watched by the self-check."""
        return ()

    def encoding(self, policy: Any) -> Sequence[Any]:
        """The modules that only encode, within the one whose class is swapped: the denoising runs none of their weights, and
        they do not excuse a fast path that is less exact than its own weights allow.
        """
        return ()

    def steps(self, policy: Any) -> Sequence[tuple[Any, str]]:
        """The method that makes one step of denoising, as (object, name), where the seam encloses more than the loop: for the
        profiler, to which everything before the first step is encoding.
        """
        return ()

    def cost(self, policy: Any) -> Any:
        """What a round's cost depends on besides shapes and settings that are numbers: the number of denoising steps, weights
        that are not torch's. Lists, numbers and texts; stored profiles hold where it is equal.
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
    adapters = sorted(ADAPTERS.values(), key=lambda adapter: adapter.home == "anybody")
    for candidate in _inside(policy):
        for adapter in adapters:
            if adapter.owns(candidate):
                return adapter, candidate
    supported = sorted(name for name, adapter in ADAPTERS.items() if not adapter.refusal)
    raise KeystoneError(
        f"no adapter knows a {type(policy).__name__}. Supported: {', '.join(supported)}. A policy of your own "
        "needs the methods encode(observation) and sample(context, noise), its parameters named so; or name the method that "
        'draws the noise and returns (B, T, D) chunks: keystone.attach(policy, site="sample_actions")'
    )


def _inside(policy: Any) -> Iterator[Any]:
    """The object, then what it holds, breadth first."""
    queue, seen = [policy], set()
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        queue += [inner for name in _INNER if (inner := getattr(current, name, None)) is not None]


def swap_in(module: Any, seam: type[Seam], session: Session) -> None:
    """Make the module an instance of a subclass of its own class with the seam's methods on top."""
    hidden = sorted(
        name
        for name, value in vars(seam).items()
        if name in vars(module) and not name.startswith("__") and not isinstance(value, Hook)
    )
    if hidden:
        raise KeystoneError(
            f"{type(module).__name__}.{hidden[0]} was replaced on the object itself (by torch.compile, say), which hides every "
            "method of the class: build the policy without that (compile_model=False), and let keystone.attach(policy, "
            "compile=True) compile its denoising step"
        )
    original = type(module)
    try:
        module.__class__ = combined = _combined(seam, original)
    except TypeError as error:
        raise KeystoneError(f"the class of a {original.__name__} cannot be changed: {error}") from error
    vars(module)["_keystone"] = session
    session.swapped.append((module, original, combined))


def swap_out(session: Session) -> None:
    """Give every module its own class back, the last first; leaves nothing behind."""
    for module, _, combined in session.swapped:
        if not issubclass(type(module), combined):
            raise KeystoneError(
                f"something changed the class of a {combined.__name__} after KeyStone was attached: undo that, then detach"
            )
    for module, original, _ in reversed(session.swapped):
        module.__class__ = original
        vars(module).pop("_keystone", None)
    session.swapped.clear()
    vars(session.owner).pop("_keystone", None)


def find_session(policy: Any) -> Session | None:
    """The session of an attached policy, or of one inside the object."""
    for candidate in _inside(policy):
        session: Session | None = getattr(candidate, "__dict__", {}).get("_keystone")
        if session is not None:
            return session
    return None


_classes: dict[tuple[type, type], type] = {}


def _combined(seam: type[Seam], original: type) -> type:
    key = (seam, original)
    if key not in _classes:
        own = {name: value for name, value in vars(seam).items() if not name.startswith("__")}
        # Hooks need no place of their own among the bases. A second base would change the memory layout of classes that
        # descend from abc.ABC, and such objects keep their class.
        hooks = bool(own) and all(isinstance(value, Hook) for value in own.values())
        bases, names = ((original,), own) if hooks else ((seam, original), {})
        attributes = {"__module__": original.__module__, **names}
        _classes[key] = class_instead(original, f"KeyStone{original.__name__}", bases, attributes)
    return _classes[key]
