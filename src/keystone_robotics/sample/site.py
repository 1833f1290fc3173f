"""For policies without an adapter: vectorise a named method over its randomness."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.kit.jax_arrays import (
    candidate_keys,
    coarsest_type_of,
    is_array,
    random_keys,
    to_jax,
    to_torch,
)
from keystone_robotics.sample.noise import derive_seed, preserve_rng
from keystone_robotics.sample.override import Hook, SamplerOverride
from keystone_robotics.sample.request import SampleRequest
from keystone_robotics.sample.state import ObjectState
from keystone_robotics.sample.usage import Call
from keystone_robotics.sample.vectorise import Outputs, VectoriseError, vectorise, vectorise_jax


class SiteAdapter(Adapter):
    """Adapter for ``site="method"`` or ``site="inner.module.method"``.

    Args:
        policy: the attached object.
        site: the method.
        chunk: the key or the index of the chunks in what the method returns.
        shape: (T, D) of one chunk, if the method returns (B, T * D) or leaves the batch out.
    """

    name = "site"
    project = "any"
    shared_context = "everything that does not depend on the noise (torch.vmap)"

    def __init__(
        self, policy: Any, site: str, chunk: str | int | None = None, shape: tuple[int, int] | None = None
    ) -> None:
        self.site, self.chunk, self.shape = site, chunk, shape
        #: Attention runs on the math backend, until a model's call is refused by it.
        self.math_attention = True
        *path, self.method = site.split(".")
        self.path = path
        owner = self.module(policy)
        if not callable(getattr(owner, self.method, None)):
            known = [
                name
                for name in dir(owner)
                if name == "forward"
                or (not name.startswith("_") and not hasattr(torch.nn.Module, name) and callable(getattr(owner, name)))
            ]
            raise KeystoneError(
                f"site={site!r}: {type(owner).__name__} has no such method; {nearest_name(self.method, known)}"
            )
        if isinstance(getattr(owner, self.method), torch.nn.Module):
            raise KeystoneError(
                f"site={site!r} is a module, not a method: name one of its methods, for example {site + '.forward'!r}"
            )
        self.override = _override(self.method, self.method in getattr(owner, "__dict__", {}))  # type: ignore[misc]

    def owns(self, policy: Any) -> bool:
        return True

    def module(self, policy: Any) -> Any:
        for name in self.path:
            if not hasattr(policy, name):
                known = [key for key in {**vars(policy), **vars(policy).get("_modules", {})} if not key.startswith("_")]
                raise KeystoneError(
                    f"site: {type(policy).__name__} has no attribute {name!r}; {nearest_name(name, known)}"
                )
            policy = getattr(policy, name)
        return policy

    def refuse_steps(self, policy: Any, steps: int) -> str:
        return "with site= KeyStone does not know where the policy has its number of denoising steps; set it there"

    def window(self, config: Any) -> Window | None:
        try:
            return super().window(config)
        except (AttributeError, TypeError, KeyError):
            return None  # unknown policy: all dimensions and steps count, as in the paper


@dataclass
class SiteCall:
    """One call of the named method.

    Attributes:
        adapter: what the user said of the method.
        policy: the attached object, on which the method may leave state behind.
        method: with its arguments.
        check: the self-check follows: single calls start from the state before the call, and leave the state after it.
    """

    adapter: SiteAdapter
    policy: Any
    method: Call
    check: bool
    outputs: Outputs | None = None
    candidates: Tensor = field(default_factory=lambda: torch.empty(0))
    before: ObjectState | None = None
    after: ObjectState | None = None

    def draw(self, k: int, seed: int, temperature: float) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Candidates (B, K, T, D), and the noise (K, ...) of each draw."""
        before = ObjectState.of(self.policy) if self.check else None
        try:
            self.outputs = self._vectorised(k, seed, temperature, before)
            if before is not None:
                self.after = self._state_after(self.outputs)
                self.before = before
            position = self._position(self.outputs.leaves, self.outputs.structure, self.outputs.varies)
            varies, chunks = self.outputs.varies[position], self.outputs.leaves[position]
            every = [self._shaped(one) for one in (chunks if varies else [chunks] * k)]
            self.candidates = torch.stack(every, 1)
            self._check_rows(self.outputs, position)
        except KeystoneError:
            if before is not None:
                before.restore()
            raise
        return self.candidates, self.outputs.drawn

    def _vectorised(self, k: int, seed: int, temperature: float, before: ObjectState | None) -> Outputs:
        try:
            return self._all_at_once(k, seed, temperature)
        except VectoriseError as error:
            problem = error
        if before is not None:
            before.restore()
        if problem.of_attention and self.adapter.math_attention:
            self.adapter.math_attention = False
            return self._vectorised(k, seed, temperature, before)
        if not problem.known:
            with preserve_rng():
                self.method()  # raises if the observation is at fault, and not the vectorisation
        raise problem from problem.error

    def _all_at_once(self, k: int, seed: int, temperature: float) -> Outputs:
        outputs = vectorise(self.method, k, seed, temperature, self.adapter.math_attention)
        if not any(outputs.varies) and any(map(is_array, outputs.leaves)):
            raise KeystoneError(
                f"site={self.adapter.site!r}: the method returns an array of JAX, and no single random key is among its "
                "arguments: give it one (jax.random.key) as an argument of its own, or in a dict, list or tuple"
            )
        return outputs

    def _state_after(self, outputs: Outputs) -> ObjectState:
        after = ObjectState.of(self.policy)
        site = f"site={self.adapter.site!r}"
        if name := after.leaked():
            raise KeystoneError(
                f"{site}: the method stores a tensor that depends on the noise in {name}, which would stay a tensor of all K "
                "candidates: name a method that stores nothing, or write an adapter (docs/adapters.md)"
            )
        if outputs.others:
            raise KeystoneError(
                f"{site}: the method also draws with {', '.join(sorted(outputs.others))}, whose numbers cannot be given to a "
                "single call again, so the self-check has nothing to compare with: draw with torch.randn or torch.rand, put "
                "the policy into eval(), or pass check=False"
            )
        return after

    def precision(self) -> torch.dtype:
        """The coarsest dtype that was computed in, also under the method's own autocast."""
        assert self.outputs is not None
        return max({torch.float32, *self.outputs.dtypes}, key=lambda kind: torch.finfo(kind).eps)

    def _one(self) -> Any:
        """Of the candidate whose noise the self-check sets; else the policy's own."""
        return self.method()

    def single(self) -> Any:
        """The method's own result. Within the self-check from the same state as the candidates."""
        if self.before is None or self.after is None:
            return self._one()
        self.before.restore()
        try:
            value = self._one()
            if difference := self.after.other_shape(ObjectState.of(self.policy)):
                raise KeystoneError(
                    f"site={self.adapter.site!r}: the method leaves other state behind when it is vectorised: {difference} "
                    "after a single call; name a method that stores nothing, or write an adapter (docs/adapters.md)"
                )
        finally:
            self.after.restore()
        return value

    def chunk(self, value: Any) -> Tensor:
        """The chunks (B, T, D) in what a single call returns."""
        leaves, structure = tree_flatten(value)
        varies = self.outputs.varies if self.outputs else [isinstance(leaf, (Tensor, np.ndarray)) for leaf in leaves]
        return self._shaped(leaves[self._position(leaves, structure, varies)])

    def restore(self, chunk: Tensor) -> Any:
        """What the method would return with the selected chunks (B, T, D).

        Other values that depend on the noise are those of the selected candidate, or of the one nearest to a mean.
        """
        outputs, rows = self.outputs, range(len(chunk))
        assert outputs is not None
        index = (
            (self.candidates - chunk.unsqueeze(1)).detach().flatten(2).norm(dim=2).nan_to_num(nan=torch.inf).argmin(1)
        )
        position, leaves = self._position(outputs.leaves, outputs.structure, outputs.varies), list(outputs.leaves)
        for number, varies in enumerate(outputs.varies):
            if number == position:
                own = leaves[number].shape[1:] if varies else leaves[number].shape
                leaves[number] = chunk.reshape(own)
            elif varies:
                every = leaves[number]
                by_row = every.shape[1:2] == (len(chunk),) and number not in outputs.keys
                leaves[number] = every[index, list(rows)] if by_row else every[index[0]]
            if outputs.numpy and varies:
                leaves[number] = leaves[number].detach().cpu().numpy()
        return tree_unflatten(leaves, outputs.structure)

    def _position(self, leaves: list[Any], structure: Any, varies: list[bool]) -> int:
        """Which of the returned values holds the chunks."""
        name = self.adapter.chunk
        positions = tree_unflatten(list(range(len(leaves))), structure)
        if isinstance(name, str) and hasattr(positions, "_asdict"):
            positions = positions._asdict()
        if name is not None:
            if isinstance(positions, dict) and name not in positions:
                raise KeystoneError(
                    f"chunk={name!r}: the method returns no such key; {nearest_name(name, map(str, positions))}"
                )
            try:
                found = positions[name]
            except (TypeError, IndexError, KeyError):
                found = None
            if not isinstance(found, int):
                raise KeystoneError(
                    f"chunk={name!r}: the method returns {_outline(leaves, structure)}; give the key or the index of the chunks"
                )
            return found
        fits = [number for number, leaf in enumerate(leaves) if isinstance(leaf, (Tensor, np.ndarray))]
        fits = [number for number in fits if varies[number]] or fits
        if len(fits) > 1 and self.adapter.shape is None:  # (K, B, T, D) if they vary
            deep = self.outputs.varies if self.outputs and leaves is self.outputs.leaves else [False] * len(leaves)
            fits = [number for number in fits if leaves[number].ndim == 3 + deep[number]] or fits
        if len(fits) != 1:
            raise KeystoneError(
                f"the method returns {_outline(leaves, structure)}, expected one tensor of chunks (B, T, D), by itself or in a "
                "dict, list or tuple; attach(..., chunk=…) gives the key or the index of the chunks"
            )
        return fits[0]

    def _shaped(self, value: Any) -> Tensor:
        """As (B, T, D)."""
        name, shape = self.adapter.chunk, self.adapter.shape
        if not isinstance(value, (Tensor, np.ndarray)):
            raise KeystoneError(f"chunk={name!r}: a {type(value).__name__} there, expected chunks (B, T, D)")
        chunks = torch.as_tensor(value)
        if shape is None and chunks.ndim == 3:
            return chunks
        if shape is None:
            raise KeystoneError(
                f"the method returns shape {tuple(chunks.shape)}, expected one tensor of chunks (B, T, D); with "
                "attach(..., shape=(T, D)) also (B, T * D), or one chunk without a batch"
            )
        if not chunks.numel() or chunks.numel() % (shape[0] * shape[1]):
            raise KeystoneError(
                f"shape={shape}: the method returns shape {tuple(chunks.shape)}, which is not that many numbers"
            )
        return chunks.reshape(-1, *shape)

    def _check_rows(self, outputs: Outputs, position: int) -> None:
        """What else depends on the noise must have one row for each observation, of which one candidate's is taken."""
        batch = len(self.candidates)
        for number, varies in enumerate(outputs.varies):
            shape = tuple(outputs.leaves[number].shape[1:]) if varies else ()
            beside = varies and number != position and number not in outputs.keys
            if beside and batch > 1 and shape[:1] != (batch,):
                raise KeystoneError(
                    f"the method returns a tensor of shape {shape} that depends on the noise, beside the chunks of {batch} "
                    "observations: expected one row for each, since rows may select different candidates"
                )


def _outline(leaves: list[Any], structure: Any) -> str:
    """The returned value in words: ``a dict with action, action_pred``."""
    value = tree_unflatten(leaves, structure)
    if isinstance(value, dict):
        return f"a dict with {', '.join(map(str, value))}"
    if hasattr(value, "_fields"):
        return f"a named tuple with {', '.join(value._fields)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {', '.join(type(one).__name__ for one in value)}"
    return f"a {type(value).__name__}"


@dataclass
class JaxSiteCall(SiteCall):
    """One call of a method in JAX, vectorised with ``jax.vmap`` over the random keys among its arguments.

    Attributes:
        given: the caller's keys; candidates have keys of their own.
        keys: (K, ...) for each of the given ones.
    """

    given: list[Any] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)

    def with_keys(self, keys: list[Any]) -> Any:
        """The method's result with other keys in place of the given ones."""
        instead = {id(given): key for given, key in zip(self.given, keys, strict=True)}
        leaves, structure = tree_flatten((self.method.args, self.method.keywords))
        args, kwargs = tree_unflatten([instead.get(id(leaf), leaf) for leaf in leaves], structure)
        return self.method.func(*args, **kwargs)

    def _all_at_once(self, k: int, seed: int, temperature: float) -> Outputs:
        if temperature != 1.0:
            raise KeystoneError(
                f"temperature={temperature}: a method in JAX draws its noise itself; leave temperature out"
            )
        self.keys = [candidate_keys(key, derive_seed(seed, number), k) for number, key in enumerate(self.given)]
        return vectorise_jax(self.with_keys, self.keys)

    def precision(self) -> torch.dtype:
        assert self.after is not None
        try:
            held = (value for _, value in self.after.tensors())
            return coarsest_type_of(self.with_keys, self.given, held)  # calls the method once more
        finally:
            self.after.restore()

    def _one(self) -> Any:
        if not self.keys:  # the policy's own code
            return self.method()
        number = int(torch.randn(1))
        return self.with_keys([every[number] for every in self.keys])

    def chunk(self, value: Any) -> Tensor:
        leaves, structure = tree_flatten(value)
        return super().chunk(tree_unflatten([to_torch(leaf) if is_array(leaf) else leaf for leaf in leaves], structure))

    def restore(self, chunk: Tensor) -> Any:
        leaves, structure = tree_flatten(super().restore(chunk))
        assert self.outputs is not None
        like = self.outputs.arrays
        return tree_unflatten(
            [to_jax(leaf, like[number]) if number in like else leaf for number, leaf in enumerate(leaves)], structure
        )


def _sample(owner: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In the place of the named method, with the object's own."""
    engine, call = owner._keystone, functools.partial(own, *args, **kwargs)
    given = engine.adapter, engine.owner, call, not engine.verified
    site = JaxSiteCall(*given, given=keys) if (keys := random_keys(call)) else SiteCall(*given)
    request = SampleRequest(
        single=site.single, vectorised=site.draw, chunk=site.chunk, restore=site.restore, precision=site.precision
    )
    return engine.run(request)


@functools.cache
def _override(method: str, on_the_object: bool) -> type[SamplerOverride]:
    """A class that overrides one method by name, of the class or an attribute of the object (``jax.jit``)."""

    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _sample(self, getattr(super(override, self), method), *args, **kwargs)

    sample.__name__ = method
    override = type("SiteOverride", (SamplerOverride,), {method: Hook(_sample) if on_the_object else sample})
    return override
