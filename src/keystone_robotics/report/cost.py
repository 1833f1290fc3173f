"""The paper's figure of what K costs: latency and memory against K."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keystone_robotics.report.style import FAINT, INK, PALETTE, QUIET, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from keystone_robotics.profiling import Cost, Profile

#: Phases from the bottom of a bar to its top, with their colours.
PHASES = {"encode": PALETTE[5], "denoise": PALETTE[0], "select": PALETTE[1], "other": FAINT}


def draw_cost(profile: Profile) -> Figure:
    """Time of a round by phase, and peak memory, against K; the K to use is printed bold.

    >>> from keystone_robotics.profiling import Cost, Profile
    >>> costs = tuple(Cost(k, 1, 9, k, k, k, 0.2, k - 0.2, 0.0, 0.0, ratio=float(k), peak=100 + k, extra=k) for k in (1, 4))
    >>> figure = draw_cost(Profile("mine", "site", 1, "cpu", {}, "", costs, "resident memory"))
    >>> [ax.get_ylabel() for ax in figure.axes]
    ['milliseconds per round', 'peak memory, MiB']
    """
    figure, (left, right) = new_figure(9.0, 4.0, columns=2)
    alone = profile.of(profile.clients[0])
    _latency(left, profile, alone)
    _memory(right, profile, alone)
    for ax in (left, right):
        ticks = ax.set_xticks(range(len(alone)), [str(cost.k) for cost in alone])
        for tick, cost in zip(ticks, alone, strict=True):
            tick.label1.set_fontweight("bold" if cost.k == profile.best() else "normal")
        ax.set_xlabel("candidates K", color=QUIET)
        ax.grid(axis="y", color=INK, alpha=0.08)
        ax.set_axisbelow(True)
    figure.suptitle(f"{profile.policy}, {profile.device}", fontsize=10, color=INK)
    return figure


def _latency(ax: Axes, profile: Profile, alone: Sequence[Cost]) -> None:
    places = range(len(alone))
    bottom = [0.0] * len(alone)
    for phase, colour in PHASES.items():
        heights = [getattr(cost, phase) for cost in alone]
        ax.bar(places, heights, 0.62, bottom, color=colour, label=phase)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    ax.plot(places, [cost.p99 for cost in alone], linestyle="none", marker="_", markersize=14, color=INK)
    ax.annotate("p99", (len(alone) - 1, alone[-1].p99), (0, 3), textcoords="offset points", ha="center", fontsize=8)
    for clients in profile.clients[1:]:
        times = [cost.median for cost in profile.of(clients)]
        ax.plot(range(len(times)), times, color=PALETTE[3], marker="o", linewidth=2, label=f"{clients} clients, median")
    for marker, steps in zip(itertools.cycle("os^Dv"), profile.numbers_of_steps[1:]):
        times = [cost.median for cost in profile.of(profile.clients[0], steps)]
        label = f"steps={steps}, median"
        ax.plot(range(len(times)), times, color=INK, marker=marker, markerfacecolor="white", linewidth=1, label=label)
    limit = profile.budget_ms or alone[0].median * (1 + profile.tolerance)
    name = "budget" if profile.budget_ms else f"K = 1 + {profile.tolerance:.0%}"
    ax.axhline(limit, color=PALETTE[2], linewidth=1.2, dashes=(4, 2))
    ax.margins(x=0.1)  # room for the name of the limit
    ax.annotate(name, (0.0, limit), (2, 2), xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=8,
                color="#00664a")  # fmt: skip
    ax.set_ylabel("milliseconds per round", color=QUIET)
    ax.legend(frameon=False, fontsize=8, loc="upper left")


def _memory(ax: Axes, profile: Profile, alone: Sequence[Cost]) -> None:
    ax.set_ylabel("peak memory, MiB", color=QUIET)
    known = [(place, cost) for place, cost in enumerate(alone) if cost.peak is not None and cost.extra is not None]
    if not known:
        ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", color=QUIET)
        return
    places = [place for place, _ in known]
    rest = [(cost.peak or 0.0) - (cost.extra or 0.0) for _, cost in known]
    ax.bar(places, rest, 0.62, color=FAINT, label="before the round (weights, program)")
    ax.bar(places, [cost.extra or 0.0 for _, cost in known], 0.62, rest, color=PALETTE[0], label="in the round")
    ax.set_title(profile.memory, fontsize=9, color=QUIET)
    ax.set_ylim(0, 1.3 * max(cost.peak or 0.0 for _, cost in known))  # room for the legend
    ax.legend(frameon=False, fontsize=8, loc="upper left")
