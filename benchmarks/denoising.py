"""One denoising step of K candidates in three variants, on the same random weights and a random prefix.

- authors: the policy's own step, its prefix mask repeated and its cache expanded K times;
- plain: the adapter's plain path, candidates packed into one sequence;
- fast: the shared-context path.

Work done once per round (expanding the cache, projecting the prefix) counts in the memory, not in the times.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from benchmarks.timing import interleave_once, ratio, spread

#: Tokens at the end of the prefix that are padding, as behind an instruction that is shorter than the longest.
PADDING = 10


def randomise(module: Any) -> None:
    """Weights for a module that was built on the meta device: matrices of deviation 1 / sqrt(fan-in), norms of 1."""
    import torch

    module.to_empty(device="cpu").requires_grad_(False).eval()
    generator = torch.Generator().manual_seed(0)
    for weight in module.parameters():
        if weight.ndim > 1:
            weight.normal_(0.0, weight.shape[1] ** -0.5, generator=generator)
        else:
            weight.fill_(1.0)


def random_cache(layers: int, heads: int, tokens: int, width: int) -> Any:
    """Keys and values (1, heads, tokens, width) of a prefix."""
    import torch
    from transformers.cache_utils import DynamicCache

    generator, cache = torch.Generator().manual_seed(1), DynamicCache()
    for layer in range(layers):
        cache.update(*(torch.randn(1, heads, tokens, width, generator=generator) for _ in range(2)), layer)
    return cache


@contextlib.contextmanager
def attached(k: int, owner: Any, override: Any, modules: Sequence[Any]) -> Iterator[Any]:
    """Put an adapter's override on modules without attaching to a policy; yields what the override runs in."""
    from keystone_robotics.sample.adapter import Adapter
    from keystone_robotics.sample.engine import Engine
    from keystone_robotics.sample.override import put_on, take_off
    from keystone_robotics.sample.selector import Selector
    from keystone_robotics.select import RULES

    adapter = Adapter()
    engine = Engine(adapter, owner, Selector(adapter, None, RULES["first"]()), k, seed=0)
    for module in modules:
        put_on(module, override, engine)
    try:
        yield engine
    finally:
        take_off(engine)


def open_round(stack: contextlib.ExitStack, step: Callable[[], Any]) -> Callable[[], Any]:
    """A step inside a round on the shared context that ends when the stack is closed.

    The first call prepares the round; the others are steps only.
    """
    from keystone_robotics.sample.kit.rounds import sharing

    round_, manager = contextvars.copy_context(), sharing()
    round_.run(manager.__enter__)
    stack.callback(round_.run, manager.__exit__, None, None, None)
    return lambda: round_.run(step)


@dataclass(frozen=True)
class Step:
    """One denoising step of K candidates for each of B observations.

    Attributes:
        model: with LeRobot's ``denoise_step(prefix_pad_masks, past_key_values, x_t, timestep)``.
        cache: keys and values of the prefix, B rows.
        k: candidates.
        batch: B.
    """

    model: Any
    cache: Any
    k: int
    batch: int = 1

    @property
    def tokens(self) -> int:
        return int(self.cache.layers[0].keys.shape[2])

    @cached_property
    def inputs(self) -> tuple[Any, Any, Any]:
        """Which tokens of the prefix are real (B, tokens), noise (B * K, T, D), time (B * K,)."""
        import torch

        real = (torch.arange(self.tokens)[None] < self.tokens - PADDING).repeat(self.batch, 1)
        rows, config = self.batch * self.k, self.model.config
        shape = (rows, config.chunk_size, config.max_action_dim)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        return real, noise, torch.full((rows,), 0.5)

    def single(self) -> Any:
        real, noise, times = self.inputs
        return self.model.denoise_step(real, self.cache, noise[: self.batch], times[: self.batch])

    def shared(self) -> Any:
        real, noise, times = self.inputs
        return self.model.denoise_step(real, self.cache, noise, times)

    def authors(self, expanded_cache: Any) -> Any:
        real, noise, times = self.inputs
        return self.model.denoise_step(real.repeat_interleave(self.k, 0), expanded_cache, noise, times)

    def expanded_cache(self) -> Any:
        wide = copy.deepcopy(self.cache)
        wide.batch_repeat_interleave(self.k)
        return wide


def compare(model: Any, override: Any, cache: Any, k: int, rounds: int, compiled: bool = False) -> dict[str, Any]:
    """Ratios of times, the largest difference, and the extra memory of one step of K candidates.

    Args:
        model: see `Step`.
        override: of its adapter.
        cache: of the prefix.
        k: candidates.
        rounds: of interleaved measurements.
        compiled: measure the compiled fast step, too.
    """
    import torch

    from keystone_robotics.sample.kit.rounds import sharing

    step = Step(model, cache, k)
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        engine = stack.enter_context(attached(k, model, override, [model]))

        def shared_compiled() -> Any:
            engine.compile = True
            try:
                return step.shared()
            finally:
                engine.compile = False

        def whole_round() -> Any:
            with sharing():
                return step.shared()

        variants = {
            "single": step.single,
            "authors": partial(step.authors, step.expanded_cache()),
            "plain": step.shared,
            "fast": open_round(stack, step.shared),
        }
        if compiled:
            variants["compiled"] = open_round(stack, shared_compiled)
        outputs, seconds = interleave_once(variants, rounds)
        del variants
        peaks = {
            "authors": peak_mib(lambda: step.authors(step.expanded_cache())),
            "plain": peak_mib(step.shared),
            "fast": peak_mib(whole_round),
        }
    return {
        "k": k,
        "tokens": step.tokens,
        "rounds": rounds,
        "plain_ratio": ratio(seconds, "authors", "plain"),
        **_ratios(seconds),
        "difference": _difference({name: [output] for name, output in outputs.items()}),
        "size": float(outputs["authors"].abs().max()),
        "peak_mib": peaks,
    }


def compare_variants(variants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """Ratios of times, the largest difference, and the extra memory of whole rounds.

    Args:
        variants: "authors" and "fast" for K candidates, "single" for one in the authors' code, and optionally "compiled"; each
            returns a tensor or several, "fast" and "compiled" with as many numbers as "authors".
        rounds: of interleaved measurements.
    """
    import torch

    with torch.inference_mode():
        outputs, seconds = interleave_once(variants, rounds)
        peaks = {name: peak_mib(variants[name]) for name in ("authors", "fast")}
    tensors = {name: [found] if isinstance(found, torch.Tensor) else list(found) for name, found in outputs.items()}
    return {
        "rounds": rounds,
        **_ratios(seconds),
        "difference": _difference(tensors),
        "size": max(float(own.abs().max()) for own in tensors["authors"]),
        "peak_mib": peaks,
    }


def _ratios(seconds: Mapping[str, list[float]]) -> dict[str, Any]:
    return {
        "ratio": ratio(seconds, "authors", "fast"),
        "range": spread(seconds, "authors", "fast"),
        **({"compiled_ratio": ratio(seconds, "authors", "compiled")} if "compiled" in seconds else {}),
        "authors_over_single": ratio(seconds, "authors", "single"),
        "fast_over_single": ratio(seconds, "fast", "single"),
    }


def _difference(tensors: Mapping[str, Sequence[Any]]) -> float:
    """The largest difference of any variant of K candidates to the authors' code."""
    return max(
        float((own - other.reshape(own.shape)).abs().max())
        for name in tensors.keys() - {"single"}
        for own, other in zip(tensors["authors"], tensors[name], strict=True)
    )


def peak_mib(call: Callable[[], object]) -> float | None:
    """Peak memory of the process during a call, above what it had before; None where that cannot be measured."""
    from keystone_robotics.profiling.memory import ProcessMeter

    meter = ProcessMeter()
    meter.begin()
    call()
    found = meter.end()
    return None if found is None else found.peak - found.before
