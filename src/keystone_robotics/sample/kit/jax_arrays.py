"""Samplers in JAX: their arrays, their random keys and their precision. JAX is used only where it was imported already."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_torch(array: Any) -> Tensor:
    """A copy on the host; bfloat16, which numpy lacks, as float32."""
    host = np.array(array)
    return torch.from_numpy(host.astype(np.float32) if host.dtype.name == "bfloat16" else host)


def is_random_key(value: Any) -> bool:
    """Whether a value is one of JAX's random keys, of the new or of the old kind (two uint32)."""
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(value, jax.Array):
        return False
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return bool(value.ndim == 0)
    return bool(value.shape == (2,) and value.dtype == np.uint32)


def candidate_keys(key: Any, seed: int, k: int) -> Any:
    """(K, ...) keys of the same kind as ``key``; the one of candidate j depends on the seed and on j only."""
    jax = sys.modules["jax"]
    if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        first = jax.random.key(seed % 2**32, impl=jax.random.key_impl(key))
    else:
        first = jax.random.PRNGKey(seed % 2**32)
    first = jax.random.fold_in(first, seed // 2**32 % 2**32)
    return jax.vmap(lambda j: jax.random.fold_in(first, j))(jax.numpy.arange(k))


def coarsest_type_of(sample: Callable[[Any], Any], example: Any) -> torch.dtype:
    """The coarsest dtype in which a sampler computes: in its own code, or in the device's matrix products."""
    jax = sys.modules["jax"]
    program = str(jax.make_jaxpr(sample)(example))
    types = {"bf16": torch.bfloat16, "f16": torch.float16}
    found = {types[name] for name in re.findall(r"\b(bf16|f16)\[", program)}
    # By default JAX multiplies float32 as TF32 on GPUs (as many mantissa bits as float16) and as bfloat16 on TPUs.
    found.add({"cpu": torch.float32, "tpu": torch.bfloat16}.get(jax.default_backend(), torch.float16))
    return max(found, key=lambda kind: torch.finfo(kind).eps)
