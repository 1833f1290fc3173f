"""Override methods of a live object by changing its class to a subclass, and undo it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import traceback
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.noise import preserve_rng
from keystone_robotics.sample.proxies import original_class, proxy_class, root_class
from keystone_robotics.sample.usage import Call

if TYPE_CHECKING:
    from keystone_robotics.sample.engine import Engine

log = logging.getLogger("keystone")

#: Attributes through which servers and wrappers hold the policy, and policies hold their model.
_INNER = (
    "_policy", "policy", "_framework", "_model", "model", "trained_model", "inner", "module", "_orig_mod", "action_head",
    "action_model",
)  # fmt: skip


class SamplerOverride:
    """Base of classes whose methods override those of a module; `put_on` sets the engine as ``_keystone``."""

    # For the type checker only: transformers resolves the annotations of a module's classes at run time.
    if TYPE_CHECKING:
        _keystone: Engine

        def __getattr__(self, name: str) -> Any: ...


class Hook:
    """Overrides a method that is an instance attribute: compiled, jitted, or bound in the constructor.

    Used as a class attribute of an override. A data descriptor takes precedence over instance attributes, so the instance
    attribute stays unchanged and is in effect again when the override is removed.

    Args:
        method: called as ``method(object, own, *args, **kwargs)``, ``own`` being the object's original method.

    >>> import types
    >>> from keystone_robotics.sample.usage import Usage
    >>> class Model:
    ...     pass
    >>> model = Model()
    >>> model.sample = lambda noise: noise
    >>> model._keystone = types.SimpleNamespace(usage=Usage())  # `put_on` sets the engine
    >>> model.__class__ = type("Hooked", (Model,), {"sample": Hook(lambda model, own, noise: -own(noise))})
    >>> model.sample(1)
    -1
    >>> model.__class__ = Model
    >>> model.sample(1)
    1
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __set_name__(self, holder: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        if instance is None:
            return self
        own = vars(instance).get(self._name)
        return functools.partial(self._call, instance, self.from_class(instance) if own is None else own)

    def _call(self, instance: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        single = functools.partial(own, *args, **kwargs)
        with _inside(instance, single) as attached:
            call = functools.partial(self._method, instance, own, *args, **kwargs)
            return _explained(instance, call, single) if attached else single()

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = value

    def __delete__(self, instance: Any) -> None:
        if self._name not in vars(instance):
            raise AttributeError(self._name)
        del vars(instance)[self._name]

    def from_class(self, instance: Any) -> Any:
        """The method as defined by the object's class, uncompiled."""
        kind = type(instance)
        found = [vars(base)[self._name] for base in kind.__mro__ if self._name in vars(base)]
        # The hook is there twice in an object that was constructed from the class of an attached one, and attached itself.
        below = [value for value in found[found.index(self) :] if value is not self]
        if not below:
            raise AttributeError(f"{kind.__name__!r} object has no attribute {self._name!r}")
        return below[0].__get__(instance, kind)


@contextlib.contextmanager
def _inside(instance: Any, own: Call) -> Iterator[bool]:
    """Within this block, which stands for the call ``own``, the object is not detached from; False if it has been since its
    method was looked up, or if its own methods are to run.
    """
    engine: Engine | None = vars(instance).get("_keystone")
    if engine is None:
        yield False
        return
    engine.usage.enter(own)
    try:
        yield vars(instance).get("_keystone") is engine and not engine.usage.is_bypassed
    finally:
        engine.usage.leave()


def _guarded(name: str, method: Callable[..., Any], original: type) -> Callable[..., Any]:
    """An override's method, which runs with the object attached from begin to end, or the object's own."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # a lock would break the graph
            return method(self, *args, **kwargs)
        own = functools.partial(types.MethodType(getattr(original, name), self), *args, **kwargs)
        with _inside(self, own) as attached:
            return _explained(self, functools.partial(method, self, *args, **kwargs), own) if attached else own()

    return call


def _explained(instance: Any, call: Callable[[], Any], own: Callable[[], Any]) -> Any:
    """The result of an override's method, whose errors become words if the object's own method does not raise them.

    With one candidate the override need not fit: the object's own method runs.

    Errors of selection, and of the object's own code with one candidate, stay as they are.
    """
    engine: Engine = instance._keystone
    try:
        return call()
    except KeystoneError:
        raise
    except Exception as error:
        # Outside of the engine: the override's parameters, or an attribute that it expects.
        drawing = getattr(error, "keystone_drawing", False) or not _was_in_engine(error)
        one = engine.untouched
        if not drawing or (engine.usage.depth > 1 and not one):
            raise
        problem = error
    if one:
        return engine.at_steps(own)()
    raise _in_words(engine, problem, own)


def _in_words(engine: Engine, problem: Exception, own: Callable[[], Any]) -> Exception:
    """That the adapter does not fit; or the problem itself, if the policy's own call raises too (a wrong observation)."""
    try:
        with preserve_rng(), engine.usage.bypass():
            own()
    except Exception:
        return problem
    kind = original_class(engine.owner).__name__
    project = engine.adapter.project
    reason = (
        "The method must take B * K rows as it takes B (docs/adapters.md)"
        if project == "any"
        else f"{project}'s code has changed since the adapter was tested (docs/policies.md, docs/upstream.md): use k=1, or "
        "a version that was tested"
    )
    said = str(problem).strip() or "no message"
    explained = KeystoneError(
        f"adapter {engine.adapter.name} does not fit the code of this {kind}, which runs alone: "
        f"{type(problem).__name__}: {said.splitlines()[0]}. {reason}"
    )
    explained.__cause__ = problem
    return explained


def _was_in_engine(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__") == "keystone_robotics.sample.engine" for frame, _ in frames)


def put_on(module: Any, override: type[SamplerOverride], engine: Engine) -> None:
    """Change the module's class to a subclass that adds the override's methods."""
    hidden = sorted(
        name
        for name, value in _members(override).items()
        if name in vars(module) and not name.startswith("__") and not isinstance(value, Hook)
    )
    if hidden:
        raise KeystoneError(
            f"{type(module).__name__}.{hidden[0]} was replaced on the object itself (for example by torch.compile), which "
            "hides the methods of its class: build the policy without that (compile_model=False), and let "
            "keystone.attach(policy, compile=True) compile its denoising step"
        )
    original = type(module)
    try:
        combined = _combined(override, original)
        object.__setattr__(module, "__class__", combined)  # not the object's own: a frozen dataclass refuses
    except TypeError as error:
        raise KeystoneError(
            f"the class of a {original.__name__} cannot be changed: {error}. Attach to an object of a class of your own that "
            "holds it"
        ) from error
    vars(module)["_keystone"] = engine
    engine.overridden.append((module, original, combined))


def take_off(engine: Engine) -> None:
    """Restore the original class of every module, in reverse order, and remove all attributes."""
    for module, _, combined in engine.overridden:
        if not issubclass(type(module), combined):
            raise KeystoneError(
                f"something changed the class of a {combined.__name__} after KeyStone was attached: undo that, then detach"
            )
    for module, original, _ in reversed(engine.overridden):
        object.__setattr__(module, "__class__", original)
        vars(module).pop("_keystone", None)
    engine.overridden.clear()
    vars(engine.owner).pop("_keystone", None)


def watch_methods(engine: Engine) -> None:
    """Time and count encoder calls and detect the first denoising step, for the methods that the adapter names."""
    adapter, owner = engine.adapter, engine.owner
    for part, name in adapter.encoder_methods(owner):
        _try_to_watch(part, _hooked_encoder(name) if name in vars(part) else _watched_encoder(name), engine)
    for part, name in adapter.step_methods(owner):
        if name not in vars(part):
            _try_to_watch(part, _watched_step(name), engine)


def _try_to_watch(part: Any, override: type[SamplerOverride], engine: Engine) -> None:
    if vars(part).get("_keystone") not in (None, engine):
        return  # an encoder shared with another attached policy
    try:
        put_on(part, override, engine)
    except KeystoneError as error:
        log.debug("KeyStone: %s of a %s is not watched: %s", override.__name__, type(part).__name__, error)


@functools.cache
def _hooked_encoder(name: str) -> type[SamplerOverride]:
    """For an encoder method that was replaced on the instance: an inference engine, a compiled function."""

    def encode(part: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return part._keystone.timer.encode(name, own, args, kwargs)

    return type("EncoderHook", (SamplerOverride,), {name: Hook(encode)})


@functools.cache
def _watched_encoder(name: str) -> type[SamplerOverride]:
    def encode(self: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(super(override, self), name)
        if torch.compiler.is_compiling():  # a clock would break the graph
            return method(*args, **kwargs)
        return self._keystone.timer.encode(name, method, args, kwargs)

    encode.__name__ = name
    override = type("EncoderOverride", (SamplerOverride,), {name: encode})
    return override


@functools.cache
def _watched_step(name: str) -> type[SamplerOverride]:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            self._keystone.timer.step()
        return getattr(super(override, self), name)(*args, **kwargs)

    step.__name__ = name
    override = type("StepOverride", (SamplerOverride,), {name: step})
    return override


def objects_inside(policy: Any) -> Iterator[Any]:
    """The object and the objects it holds, breadth first."""
    queue, seen = [policy], set()
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        queue += [inner for name in _INNER if (inner := getattr(current, name, None)) is not None]


def find_engine(policy: Any) -> Engine | None:
    """The engine of an attached policy, or of one inside the object."""
    for candidate in objects_inside(policy):
        engine: Engine | None = getattr(candidate, "__dict__", {}).get("_keystone")
        if engine is not None:
            return engine
    return None


def _members(override: type[SamplerOverride]) -> dict[str, Any]:
    """What an override defines or inherits, below `SamplerOverride`."""
    return {name: value for base in reversed(override.__mro__[:-2]) for name, value in vars(base).items()}


def _guarded_methods(override: type[SamplerOverride], original: type) -> dict[str, Any]:
    """The methods of the original class that an override replaces, each within `_inside`."""
    return {
        name: _guarded(name, value, original)
        for name, value in _members(override).items()
        if inspect.isfunction(value) and not name.startswith("__") and hasattr(original, name)
    }


_classes: dict[tuple[type, type], type] = {}


def _combined(override: type[SamplerOverride], original: type) -> type:
    key = (override, original)
    if key not in _classes:
        own = {name: value for name, value in vars(override).items() if not name.startswith("__")}
        # Hooks need no second base, which would change the memory layout of abc.ABC subclasses; assigning ``__class__`` would
        # then raise.
        hooks = bool(own) and all(isinstance(value, Hook) for value in own.values())
        bases, names = ((original,), own) if hooks else ((override, original), _guarded_methods(override, original))
        attributes = {"__module__": original.__module__, **names}
        name = f"KeyStone{root_class(original).__name__}"
        _classes[key] = proxy_class(original, name, bases, attributes)
    return _classes[key]
