"""K candidates from an unknown sampler: ``torch.vmap`` over its randomness, or ``jax.vmap`` over its random key."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.kit.jax_arrays import is_array, is_tracer, memory_error_as_torch, to_torch
from keystone_robotics.sample.noise import NOISE_FUNCTIONS, derive_seed, global_generator, initial_noise

#: Random functions whose numbers cannot be given to a single call again.
_OTHER_RANDOM: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.randint, torch.randint_like, torch.randperm, torch.bernoulli, torch.multinomial, torch.poisson,
        torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.random_, torch.Tensor.bernoulli_,
        torch.Tensor.bernoulli, torch.Tensor.multinomial, torch.Tensor.exponential_, torch.nn.functional.gumbel_softmax,
    }
)  # fmt: skip

#: What torch says of a method that cannot be vectorised -> what the method does, and what to write instead.
_CAUSES = {
    "calling .item()": "it makes a Python number of a value that depends on the noise (.item(), float(), int()): keep it a "
    "tensor",
    "control flow": "it decides by a value that depends on the noise (if, while, assert): use torch.where",
    "inplace randomness": "it draws in place (normal_(), uniform_()): draw with torch.randn or torch.rand",
    "inplace arithmetic": "it writes candidates in place into a tensor that they share: allocate that tensor with "
    "torch.zeros_like(noise), or build it with torch.cat or torch.stack",
    "doesn't match the broadcast shape": "it adds in place (+=) to a tensor that the candidates share: write x = x + y",
    "out= or view ops": "it writes with out= into a tensor that the candidates share: leave out= out",
    "dynamic shape": "a shape in it depends on the noise (a boolean mask, nonzero, unique): use torch.where",
    "data pointer": "it goes on in numpy or in lists (np.asarray, tolist()) with values that depend on the noise: return "
    "the tensor, and convert it in the caller",
    "accessing `data`": "it reads or writes .data: use the tensor itself, or detach()",
    "Batch norm got": "batch normalisation is in training mode: put the policy into eval()",
    "access storage": "it copies tensors that depend on the noise with copy.deepcopy: use clone()",
}

#: The same for JAX, by the name of the error.
_JAX_CAUSES = {
    "ConcretizationTypeError": "it makes a Python number or list of a value that depends on the random key (float(), int(), "
    ".item(), tolist()): keep it an array",
    "TracerBoolConversionError": "it decides by a value that depends on the random key (if, while): use jax.numpy.where "
    "or jax.lax.cond",
    "TracerArrayConversionError": "it goes on in numpy with values that depend on the random key (np.asarray, np.clip): use "
    "jax.numpy, return the array, and convert it in the caller",
    "TracerIntegerConversionError": "it uses a value that depends on the random key as an index of Python's: use "
    "jax.numpy.take",
    "NonConcreteBooleanIndexError": "a shape in it depends on the random key (a boolean mask): use jax.numpy.where",
    "UnexpectedTracerError": "it keeps a value that depends on the random key outside of the method and reads it later: "
    "return it",
}


class CandidateDraws(TorchFunctionMode):
    """Within ``torch.vmap``: each candidate draws noise of its own, which depends on the seed and on its number, not on K.

    ``.numpy()`` gives the tensor itself, since arrays cannot be vectorised; ``numpy`` is then True.

    Args:
        index: number of the candidate, vectorised over.
        k: how many there are.
        seed: of the round.
        temperature: factor on the first draw, which is the initial noise of a sampler.
    """

    def __init__(self, index: Tensor, k: int, seed: int, temperature: float) -> None:
        super().__init__()
        self._index, self._k, self._seed, self._temperature = index, k, seed, temperature
        self.drawn: list[Tensor] = []
        self.others: set[str] = set()
        self.dtypes: set[torch.dtype] = set()
        self.numpy = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.numpy and is_batchedtensor(args[0]):
            self.numpy = True
            return args[0]
        result: Any
        mean: Any = 0.0
        std: Any = 1.0
        if func is torch.normal:
            mean, std = _normal_arguments(*args, **kwargs)
        if isinstance(mean, Tensor) or isinstance(std, Tensor):
            result = mean + std  # of the same shape, dtype and device; torch.normal itself cannot be vectorised
        else:
            with torch._C._DisableFuncTorch() if func is torch.normal else contextlib.nullcontext():
                result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.is_floating_point():
            kind = result.device.type
            # Under autocast torch.vmap may multiply in float32, and a single call does not.
            self.dtypes |= (
                {result.dtype, torch.get_autocast_dtype(kind)} if torch.is_autocast_enabled(kind) else {result.dtype}
            )
        if func in _OTHER_RANDOM or (func is torch.nn.functional.dropout and _drops(*args, **kwargs)):
            self.others.add(func.__name__)
        if func not in NOISE_FUNCTIONS:
            return result
        uniform = func in (torch.rand, torch.rand_like)
        with torch._C._DisableFuncTorch():  # drawn in place, and not vectorised
            every = initial_noise([derive_seed(self._seed, len(self.drawn))], self._k, result.shape, uniform)
        noise = (every.add(1).div(2) if uniform else every).to(result.device)[self._index]
        if func is torch.normal:
            noise = mean + std * noise
        if not self.drawn:
            noise = noise * self._temperature
        self.drawn.append(noise.to(result.dtype))
        return self.drawn[-1].clone()


def _drops(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> bool:
    return training and p > 0


def _normal_arguments(mean: Any, std: Any = 1.0, *_: Any, **__: Any) -> tuple[Any, Any]:
    return mean, std


@dataclass
class Outputs:
    """What a vectorised method returned.

    Attributes:
        leaves: tensors and other values, in the order of the returned structure; those that depend on the noise (K, ...).
        structure: of the returned value.
        varies: for each leaf whether it depends on the noise.
        numpy: the method converts what depends on the noise to numpy.
        drawn: (K, ...) all noise, in order.
        others: names of random functions whose numbers are unknown.
        dtypes: floating types of all results on the way, and of the method's own autocast.
        arrays: the leaves that were arrays of JAX's, by number; those that depend on the noise (K, ...).
        keys: numbers of those that are the next random key, one for all observations.
    """

    leaves: list[Any]
    structure: Any
    varies: list[bool]
    numpy: bool
    drawn: tuple[Tensor, ...]
    others: set[str]
    dtypes: set[torch.dtype]
    arrays: dict[int, Any] = field(default_factory=dict)
    keys: set[int] = field(default_factory=set)


def vectorise(method: Callable[[], Any], k: int, seed: int, temperature: float, math: bool = True) -> Outputs:
    """Call a method that draws its own noise for K candidates at once.

    ``torch.vmap`` batches only what depends on the noise, so the context is encoded once.

    Args:
        math: run attention on the math backend; the fused kernels have no batching rule and run candidate by candidate.

    Raises:
        VectoriseError: if torch cannot vectorise the method, or the method itself raises.
    """
    outputs: Outputs | None = None
    mode: CandidateDraws | None = None

    def one(index: Tensor) -> list[Tensor]:
        nonlocal outputs, mode
        with CandidateDraws(index, k, seed, temperature) as mode:
            leaves, structure = tree_flatten(method())
        varies = [isinstance(leaf, Tensor) and is_batchedtensor(leaf) for leaf in leaves]
        outputs = Outputs(leaves, structure, varies, mode.numpy, (), mode.others, mode.dtypes)
        return [*(leaf for leaf, own in zip(leaves, varies, strict=True) if own), *mode.drawn]

    # Preserve the generators of all devices: the method may draw on any.
    with global_generator, torch.random.fork_rng(), sdpa_kernel(SDPBackend.MATH) if math else contextlib.nullcontext():
        try:
            found = torch.vmap(one, randomness="different")(torch.arange(k))
        except (KeystoneError, MemoryError, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:
            if "DefaultCPUAllocator" in str(error):
                raise
            raise VectoriseError(error, mode is not None and mode.numpy) from error
    assert outputs is not None
    each = iter(found)
    outputs.leaves = [next(each) if own else leaf for leaf, own in zip(outputs.leaves, outputs.varies, strict=True)]
    outputs.drawn = tuple(each)
    return outputs


def vectorise_jax(method: Callable[[list[Any]], Any], keys: list[Any]) -> Outputs:
    """Call a method in JAX with each of its random keys (K, ...) at once; what depends on the key becomes tensors (K, ...).

    A single call is given the number of its candidate as noise.

    Raises:
        VectoriseError: if JAX cannot vectorise the method, or the method itself raises.
    """
    leaves: list[Any] = []
    structure: Any = None

    def one(given: list[Any]) -> list[Any]:
        nonlocal leaves, structure
        leaves, structure = tree_flatten(method(given))
        return [leaf for leaf in leaves if is_tracer(leaf)]

    try:
        with memory_error_as_torch():
            found = iter(sys.modules["jax"].vmap(one)(keys))
            arrays = {
                number: next(found) if is_tracer(leaf) else leaf for number, leaf in enumerate(leaves) if is_array(leaf)
            }
            # JAX does not wait for results: computed here.
            tensors = {number: to_torch(array) for number, array in arrays.items()}
    except (KeystoneError, MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        raise VectoriseError(error) from error
    kinds = {(key.dtype, key.shape[1:]) for key in keys}
    varies = [is_tracer(leaf) for leaf in leaves]
    return Outputs(
        leaves=[tensors.get(number, leaf) for number, leaf in enumerate(leaves)],
        structure=structure,
        varies=varies,
        numpy=False,
        drawn=(torch.arange(len(keys[0]))[:, None],),
        others=set(),
        dtypes=set(),
        arrays=arrays,
        keys={number for number, leaf in enumerate(leaves) if varies[number] and (leaf.dtype, leaf.shape) in kinds},
    )


class VectoriseError(KeystoneError):
    """The method raised while it was vectorised.

    Attributes:
        error: what it raised.
        known: the message says what in the method is at fault.
        of_attention: the math backend of attention refused the call.
    """

    def __init__(self, error: Exception, numpy: bool = False) -> None:
        self.error, text = error, str(error)
        cause = _JAX_CAUSES.get(type(error).__name__) or next((_CAUSES[sign] for sign in _CAUSES if sign in text), "")
        if not cause and numpy:
            cause = _CAUSES["data pointer"]
        first, self.known = text.split("\n")[0], bool(cause)
        self.of_attention = "scaled_dot_product" in text or "attn_mask" in text
        super().__init__(
            f"the method cannot be vectorised over its noise: {cause or f'{type(error).__name__}: {first}'}. Name a method "
            "nearer to the sampling loop in site=, or write an adapter (docs/adapters.md)"
        )
