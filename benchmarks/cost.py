"""``python -m benchmarks.cost [--quick]``: how the cost of a denoising step grows with K, with the prefix and with the batch.

A step of SmolVLA's expert at its real size on a random prefix (see `benchmarks.denoising`), once as the authors do it, with
the cache expanded for every candidate, and once on the shared context, relative to the policy's own step with one candidate
and the same prefix and batch. Writes cost.json, cost.png and cost.svg.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import denoising, harness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE_K, BASE_TOKENS = 8, 241


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
        "k": [Case(k, BASE_TOKENS, 1) for k in ks],
        "tokens": [Case(BASE_K, tokens, 1) for tokens in lengths],
        "batch": [Case(BASE_K, BASE_TOKENS, batch) for batch in batches],
    }


def measure(model: Any, override: Any, case: Case, rounds: int) -> dict[str, float]:
    """The time of a step relative to the policy's own with K = 1, on both paths."""
    import torch

    from benchmarks.timing import interleave, ratio

    experts = model.vlm_with_expert
    cache = denoising.random_cache(experts.num_vlm_layers, experts.num_key_value_heads, case.tokens, 64)
    cache.batch_repeat_interleave(case.batch)
    step = denoising.Step(model, cache, case.k, case.batch)
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        stack.enter_context(denoising.attached(case.k, model, override, [model]))
        variants = {
            "single": step.single,
            "authors": partial(step.authors, step.expanded_cache()),
            "shared": denoising.open_round(stack, step.shared),
        }
        seconds = interleave(variants, rounds, warm_up=1)
    return {name: ratio(seconds, name, "single") for name in ("authors", "shared")}


def main(quick: bool) -> None:
    """Measure with a progress bar, then write."""
    import torch
    from rich.progress import track

    from benchmarks.denoise_smolvla import build
    from keystone_robotics.report import style
    from keystone_robotics.sample.families.smolvla.lerobot import SmolVLAOverride

    torch.set_num_threads(1)
    model = build()
    axes = cases(quick)
    distinct = list(dict.fromkeys(case for line in axes.values() for case in line))
    found = {
        case: measure(model, SmolVLAOverride, case, rounds=1 if quick else 3)
        for case in track(distinct, "cost", auto_refresh=False)
    }
    rows = [
        {"case": f"{case}, {path}", "ratio": cost, "better": "lower", "path": path, **case._asdict()}
        for case, costs in found.items()
        for path, cost in costs.items()
    ]
    results = {
        "machine": harness.describe_machine(harness.command_of("cost", quick)),
        "model": "SmolVLA's expert, real size, random weights",
        "rows": rows,
    }
    path = harness.write_json("cost", results, quick)
    style.save(figure(axes, found), harness.results_folder(quick), "cost")
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
        for path, name, colour, dark in (
            ("authors", "authors’ code", PALETTE[1], "#a84900"), ("shared", "shared context", PALETTE[0], PALETTE[0]),
        ):  # fmt: skip
            costs = [found[case][path] for case in line]
            ax.plot(places, costs, color=colour, marker="o", linewidth=2.2, markersize=4.5)
            if ax is panels[-1]:  # the lines lie farthest apart along their whole length
                middle = len(places) // 2
                above = path == "authors"
                ax.annotate(name, (middle, costs[middle]), (0, 9 if above else -9), textcoords="offset points", ha="center",
                            va="bottom" if above else "top", fontsize=11, color=dark)  # fmt: skip
        ax.set_xticks(places, [str(getattr(case, axis)) for case in line])
        ax.set_ylim(0, 1.12 * max(found[case][path] for case in line for path in ("authors", "shared")))
        ax.set_xlabel(f"{names[axis]}   ({', '.join(fixed)})", color=QUIET)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
        ax.grid(axis="y", color=INK, alpha=0.08)
    panels[0].set_ylabel("time of a step, × that of one candidate", color=QUIET)
    return drawn


if __name__ == "__main__":
    main(harness.parse_quick("cost", __doc__))
