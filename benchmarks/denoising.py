"""One denoising step of K candidates in three ways, on the same random weights and a made-up prefix.

- authors: the policy's own step, its prefix mask repeated and its cache expanded K times;
- plain: the adapter's plain path, candidates packed into one sequence;
- fast: the shared-context path.

What each does once in a round (expanding the cache, projecting the prefix) is not in the times, but in the memory.
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import copy
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.output import write_json
from benchmarks.timing import interleave_once, ratio, spread

#: Tokens at the end of the prefix that are padding, as behind an instruction that is shorter than the longest.
PADDING = 10


def run(name: str, rows: Callable[[bool], Iterable[dict[str, Any]]], quick: bool) -> Path:
    """Measure, and write ``{"machine": …, "rows": […]}`` to benchmarks/results, or to its folder ``quick``."""
    import torch

    from benchmarks.machine import describe

    torch.set_num_threads(1)
    command = f"python -m benchmarks.{name}{' --quick' if quick else ''}"
    found: dict[str, Any] = {"machine": describe(command), "rows": []}
    for row in rows(quick):
        print(json.dumps(row))
        found["rows"].append(row)
    path = write_json(name, found, quick)
    print(f"wrote {path}")
    return path


def quick_wanted(name: str, purpose: str | None) -> bool:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=purpose)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases, to benchmarks/results/quick")
    return bool(parser.parse_args().quick)


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
def overridden(owner: Any, k: int, override: Any, modules: Iterable[Any] = ()) -> Iterator[Any]:
    """The engine of an override that is on the modules, by default on the owner itself, during this block."""
    from keystone_robotics.sample.adapter import Adapter
    from keystone_robotics.sample.engine import Engine
    from keystone_robotics.sample.override import put_on, take_off
    from keystone_robotics.sample.selector import Selector
    from keystone_robotics.select.rules import bind

    adapter = Adapter()
    engine = Engine(adapter, owner, Selector(adapter, None, bind("keystone", {})), k)
    for module in modules or [owner]:
        put_on(module, override, engine)
    try:
        yield engine
    finally:
        take_off(engine)


def hold_round(stack: contextlib.ExitStack, step: Callable[[], Any]) -> Callable[[], Any]:
    """A step in a round on the shared context that goes on until the stack is closed.

    The first call prepares the round, the others are steps and nothing else.
    """
    from keystone_robotics.sample.kit.rounds import sharing

    round_, manager = contextvars.copy_context(), sharing()
    round_.run(manager.__enter__)
    stack.callback(round_.run, manager.__exit__, None, None, None)
    return lambda: round_.run(step)


def compare(model: Any, override: Any, cache: Any, k: int, rounds: int, compiled: bool = False) -> dict[str, Any]:
    """Ratios of times, the largest difference, and the extra memory of one step of K candidates.

    Args:
        model: with LeRobot's ``denoise_step(prefix_pad_masks, past_key_values, x_t, timestep)``.
        override: of its adapter.
        cache: of the prefix.
        k: candidates.
        rounds: of interleaved measurements.
        compiled: measure the compiled fast step too.
    """
    import torch

    from keystone_robotics.sample.kit.rounds import sharing

    tokens = cache.layers[0].keys.shape[2]
    real = torch.arange(tokens)[None] < tokens - PADDING
    shape = (k, model.config.chunk_size, model.config.max_action_dim)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    times = torch.full((k,), 0.5)

    def expanded() -> Any:
        wide = copy.deepcopy(cache)
        wide.batch_repeat_interleave(k)
        return wide

    def as_authors(wide: Any) -> Any:
        return model.denoise_step(real.repeat(k, 1), wide, noise, times)

    def shared() -> Any:
        return model.denoise_step(real, cache, noise, times)

    def shared_compiled() -> Any:
        engine.compile = True
        try:
            return shared()
        finally:
            engine.compile = False

    def whole_round() -> Any:
        with sharing():
            return shared()

    with torch.inference_mode(), contextlib.ExitStack() as rounds_begun:
        engine = rounds_begun.enter_context(overridden(model, k, override))
        variants = {
            "single": lambda: model.denoise_step(real, cache, noise[:1], times[:1]),
            "authors": partial(as_authors, expanded()),
            "plain": shared,
            "fast": hold_round(rounds_begun, shared),
        }
        if compiled:
            variants["compiled"] = hold_round(rounds_begun, shared_compiled)
        outputs, seconds = interleave_once(variants, rounds)
        del variants
        peaks = {
            "authors": peak_mib(lambda: as_authors(expanded())),
            "plain": peak_mib(shared),
            "fast": peak_mib(whole_round),
        }
    return {
        "k": k,
        "tokens": tokens,
        "rounds": rounds,
        "ratio": ratio(seconds, "authors", "fast"),
        "range": spread(seconds, "authors", "fast"),
        "plain_ratio": ratio(seconds, "authors", "plain"),
        **({"compiled_ratio": ratio(seconds, "authors", "compiled")} if compiled else {}),
        "authors_over_single": ratio(seconds, "authors", "single"),
        "fast_over_single": ratio(seconds, "fast", "single"),
        "difference": max(
            float((outputs[name] - outputs["authors"]).abs().max()) for name in outputs if name != "single"
        ),
        "size": float(outputs["authors"].abs().max()),
        "peak_mib": peaks,
    }


def compare_ways(variants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """Of whole rounds: how their times and memory relate, and how far apart what they compute is.

    Args:
        variants: "authors" and "fast" for K candidates, "single" for one in the authors' way, and "compiled" if that is wanted;
            each returns a tensor or several, "fast" and "compiled" with as many numbers as "authors".
        rounds: in which they take turns.
    """
    import torch

    with torch.inference_mode():
        outputs, seconds = interleave_once(variants, rounds)
        peaks = {way: peak_mib(variants[way]) for way in ("authors", "fast")}
    tensors = {way: [found] if isinstance(found, torch.Tensor) else list(found) for way, found in outputs.items()}
    return {
        "rounds": rounds,
        "ratio": ratio(seconds, "authors", "fast"),
        "range": spread(seconds, "authors", "fast"),
        **({"compiled_ratio": ratio(seconds, "authors", "compiled")} if "compiled" in variants else {}),
        "authors_over_single": ratio(seconds, "authors", "single"),
        "fast_over_single": ratio(seconds, "fast", "single"),
        "difference": max(
            float((own - other.reshape(own.shape)).abs().max())
            for way in variants.keys() - {"single"}
            for own, other in zip(tensors["authors"], tensors[way], strict=True)
        ),
        "size": max(float(own.abs().max()) for own in tensors["authors"]),
        "peak_mib": peaks,
    }


def peak_mib(call: Callable[[], object]) -> float | None:
    """How much memory the process needs at most during a call beyond what it has before; None where no one tells."""
    from keystone_robotics.profiling.memory import ProcessMeter

    meter = ProcessMeter()
    meter.begin()
    call()
    found = meter.end()
    return None if found is None else found.peak - found.before
