"""Samplers in JAX: their arrays, their random keys and their precision. JAX is used only where it was imported already."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.usage import Call

#: Of an argument that holds a random key: key, rng, rngs, prng_key, sample_rng, key2.
_KEY_NAME = re.compile(r"(^|_)p?(key|rng)s?\d*$")


def to_torch(array: Any) -> Tensor:
    """A copy on the host; bfloat16, which numpy lacks, as float32; random keys as their numbers."""
    host = np.array(sys.modules["jax"].random.key_data(array) if is_typed_key(array) else array)
    return torch.from_numpy(host.astype(np.float32) if host.dtype.name == "bfloat16" else host)


def to_jax(tensor: Tensor, like: Any) -> Any:
    """The inverse of `to_torch`, given an array of the same kind."""
    jax = sys.modules["jax"]
    array = jax.numpy.asarray(tensor.numpy())
    if is_typed_key(like):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))
    return array.astype(like.dtype)


def is_array(value: Any) -> bool:
    """Whether a value is an array of JAX's, concrete or not."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def is_tracer(value: Any) -> bool:
    """Whether a value stands for an array while a function is transformed, and is of no use after that."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def is_typed_key(value: Any) -> bool:
    """Whether a value holds random keys of JAX's new kind (``jax.random.key``)."""
    jax = sys.modules.get("jax")
    return is_array(value) and bool(jax and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key))


def random_keys(call: Call) -> list[Any]:
    """The random keys among the arguments of a call, each once; those of the new kind also within dicts, lists and tuples.

    A key of the old kind is two uint32, as the size of an image may be. It is taken for a key if there is none of the new
    kind, and if it is in an argument with the name of a key, or is the only such argument.
    """
    args, kwargs = call.args, call.keywords
    leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if is_array(leaf)]
    keys = [leaf for leaf in leaves if is_typed_key(leaf)]
    if not keys and any(map(_may_be_key, leaves)):
        arguments = {**dict(zip(inspect.signature(call.func).parameters, args, strict=False)), **kwargs}
        named = [value for name, value in arguments.items() if _KEY_NAME.search(name)]
        keys = [leaf for leaf in tree_flatten(named)[0] if _may_be_key(leaf)]
        if not keys:
            keys = [value for value in (*args, *kwargs.values()) if _may_be_key(value)]
            if len({id(key) for key in keys}) > 1:
                raise KeystoneError(
                    "several arguments may be the random key (two uint32 each): name the one that is key, rng or rngs in the "
                    "method, or make it with jax.random.key"
                )
    return list({id(key): key for key in keys if key.ndim == (0 if is_typed_key(key) else 1)}.values())


def _may_be_key(value: Any) -> bool:
    return is_array(value) and bool(value.shape == (2,) and value.dtype == np.uint32)


def candidate_keys(key: Any, seed: int, k: int) -> Any:
    """(K, ...) keys of the same kind as ``key``; the one of candidate j depends on the seed and on j only."""
    jax = sys.modules["jax"]
    if is_typed_key(key):
        first = jax.random.key(seed % 2**32, impl=jax.random.key_impl(key))
    else:
        first = jax.random.PRNGKey(seed % 2**32)
    first = jax.random.fold_in(first, seed // 2**32 % 2**32)
    return jax.vmap(lambda j: jax.random.fold_in(first, j))(jax.numpy.arange(k))


@contextlib.contextmanager
def memory_error_as_torch() -> Iterator[None]:
    """Raise torch's error where JAX runs out of memory: the engine halves K then."""
    try:
        yield
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise torch.cuda.OutOfMemoryError(str(error)) from error


def coarsest_type_of(sample: Callable[[Any], Any], example: Any, weights: Iterable[Any] = ()) -> torch.dtype:
    """The coarsest dtype in which a sampler computes: in its own code, or in the device's matrix products.

    Args:
        weights: of the sampler, whose types count where JAX cannot trace the code as a whole, since Python decides by numbers
            of the observation in it, or a shape depends on them.
    """
    jax = sys.modules["jax"]
    types = {"bf16": torch.bfloat16, "f16": torch.float16, "bfloat16": torch.bfloat16, "float16": torch.float16}

    def arrays(key: Any) -> list[Any]:
        return [leaf for leaf in jax.tree.leaves(sample(key)) if is_array(leaf)]

    try:
        names = re.findall(r"\b(bf16|f16)\[", str(jax.make_jaxpr(arrays)(example)))
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        names = [str(weight.dtype) for weight in weights]
    found = {types[name] for name in names if name in types}
    # By default JAX multiplies float32 as TF32 on GPUs (as many mantissa bits as float16) and as bfloat16 on TPUs.
    found.add({"cpu": torch.float32, "tpu": torch.bfloat16}.get(jax.default_backend(), torch.float16))
    return max(found, key=lambda kind: torch.finfo(kind).eps)
