"""``python -m benchmarks.cost [--quick]``: how the cost of a denoising step grows with K, with the prefix and with the batch.

A step of SmolVLA's expert at its real size on a made-up prefix (see `benchmarks.denoising`), once as the authors do it, with
the cache expanded for every candidate, and once on the shared context, relative to the policy's own step with one candidate
and the same prefix and batch. Writes cost.json, cost.png and cost.svg. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import denoising
from benchmarks.output import results_folder, write_json
from benchmarks.partial import Partial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOME_K, HOME_TOKENS = 8, 241


class Case(NamedTuple):
    """One step: K candidates for each of B observations with a prefix of so many tokens."""

    k: int
    tokens: int
    batch: int

    def __str__(self) -> str:
        return f"K = {self.k}, {self.tokens} tokens, batch {self.batch}"


def cases(quick: bool) -> dict[str, list[Case]]:
    """By the axis that they lie on."""
    if quick:
        return {
            "k": [Case(2, 64, 1), Case(4, 64, 1)],
            "tokens": [Case(2, 64, 1), Case(2, 241, 1)],
            "batch": [Case(2, 64, 1), Case(2, 64, 2)],
        }
    ks, lengths, batches = (1, 2, 4, 8, 16, 32), (64, 128, 241, 512, 1024), (1, 2, 4)
    return {
        "k": [Case(k, HOME_TOKENS, 1) for k in ks],
        "tokens": [Case(HOME_K, tokens, 1) for tokens in lengths],
        "batch": [Case(HOME_K, HOME_TOKENS, batch) for batch in batches],
    }


def measure(model: Any, override: Any, case: Case, rounds: int) -> dict[str, float]:
    """The time of a step relative to the policy's own with K = 1, on both paths."""
    import torch

    from benchmarks.timing import interleave, ratio

    k, tokens, batch = case
    experts = model.vlm_with_expert
    cache = denoising.random_cache(experts.num_vlm_layers, experts.num_key_value_heads, tokens, 64)
    cache.batch_repeat_interleave(batch)
    wide = copy.deepcopy(cache)
    wide.batch_repeat_interleave(k)
    real = (torch.arange(tokens)[None] < tokens - denoising.PADDING).repeat(batch, 1)
    shape = (batch * k, model.config.chunk_size, model.config.max_action_dim)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    times = torch.full((batch * k,), 0.5)
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        stack.enter_context(denoising.overridden(model, k, override))
        variants = {
            "single": lambda: model.denoise_step(real, cache, noise[:batch], times[:batch]),
            "authors": lambda: model.denoise_step(real.repeat_interleave(k, 0), wide, noise, times),
            "shared": denoising.hold_round(stack, lambda: model.denoise_step(real, cache, noise, times)),
        }
        seconds = interleave(variants, rounds, warm_up=1)
    return {name: ratio(seconds, name, "single") for name in ("authors", "shared")}


def main(quick: bool) -> None:
    """Measure what is missing with a progress bar, then write."""
    import torch
    from rich.progress import track

    from benchmarks.denoise_smolvla import build
    from benchmarks.machine import describe
    from keystone_robotics.report import style
    from keystone_robotics.sample.families.smolvla.lerobot import SmolVLAOverride

    torch.set_num_threads(1)
    partial = Partial("cost", quick)
    model = build()
    axes = cases(quick)
    distinct = list(dict.fromkeys(case for line in axes.values() for case in line))
    found = {}
    for case in track(distinct, "cost", auto_refresh=False):
        found[case] = partial(str(case), lambda case=case: measure(model, SmolVLAOverride, case, 1 if quick else 3))
    rows = [
        {"case": f"{case}, {path}", "ratio": cost, "better": "lower", "path": path, **case._asdict()}
        for case, costs in found.items()
        for path, cost in costs.items()
    ]
    command = f"python -m benchmarks.cost{' --quick' if quick else ''}"
    results = {"machine": describe(command), "model": "SmolVLA's expert, real size, random weights", "rows": rows}
    path = write_json("cost", results, quick)
    style.save(figure(axes, found), results_folder(quick), "cost")
    partial.finish()
    print(f"wrote {path}")


def figure(axes: dict[str, list[Case]], found: dict[Case, dict[str, float]]) -> Figure:
    """Cost against K, the length of the prefix, and the batch."""
    from keystone_robotics.report.style import INK, PALETTE, QUIET, new_figure

    drawn, panels = new_figure(11.0, 3.8, columns=3)
    names = {"k": "candidates K", "tokens": "tokens of the prefix", "batch": "observations in the batch"}
    for ax, (axis, line) in zip(panels, axes.items(), strict=True):
        short = {"k": "K", "tokens": "prefix", "batch": "batch"}
        fixed = [f"{short[key]} {getattr(line[0], key)}" for key in short if key != axis]
        places = range(len(line))
        for path, colour in (("authors", PALETTE[1]), ("shared", PALETTE[0])):
            costs = [found[case][path] for case in line]
            ax.plot(places, costs, color=colour, marker="o", linewidth=2.2, markersize=4.5, label=path)
        ax.set_xticks(places, [str(getattr(case, axis)) for case in line])
        ax.set_ylim(0, None)
        ax.set_xlabel(f"{names[axis]}   ({', '.join(fixed)})", color=QUIET)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
        ax.grid(axis="y", color=INK, alpha=0.08)
    panels[0].set_ylabel("time of a step, K = 1 being 1", color=QUIET)
    panels[0].legend(frameon=False, fontsize=9)
    return drawn


if __name__ == "__main__":
    main(denoising.quick_wanted("cost", __doc__))
