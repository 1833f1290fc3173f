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

#: Phases from the bottom of a bar to its top, with their colours, and those of their names, dark enough to read on white.
PHASES = {
    "encode": (PALETTE[5], "#00699e"),
    "denoise": (PALETTE[0], PALETTE[0]),
    "select": (PALETTE[1], "#a84900"),
    "other": (FAINT, QUIET),
}
SEEN = 0.015  #: of the highest bar: what is lower cannot be seen, and is not named


def draw_cost(profile: Profile) -> Figure:
    """Time of a round by phase, and peak memory where the round adds to it, against K; the K to use is printed bold.

    >>> from keystone_robotics.profiling import Cost, Profile
    >>> costs = tuple(Cost(k, 1, 9, k, k, k, 0.2, k - 0.2, 0.0, 0.0, ratio=float(k), peak=100 + k, extra=k) for k in (1, 4))
    >>> figure = draw_cost(Profile("mine", "site", 1, "cpu", {}, "", costs, "resident memory"))
    >>> [ax.get_ylabel() for ax in figure.axes]
    ['milliseconds per round', 'peak memory, MiB']
    """
    alone = profile.of(profile.clients[0])
    grows = any((cost.extra or 0.0) > SEEN * (cost.peak or 0.0) for cost in alone)
    figure, (left, *right) = new_figure(9.6 if grows else 6.4, 4.0, columns=2 if grows else 1)
    _latency(left, profile, alone)
    for ax in right:
        _memory(ax, profile, alone)
    if not grows:
        left.set_title(_memory_in_words(profile, alone), fontsize=9, color=QUIET)
    for ax in (left, *right):
        ticks = ax.set_xticks(range(len(alone)), [str(cost.k) for cost in alone])
        for tick, cost in zip(ticks, alone, strict=True):
            tick.label1.set_fontweight("bold" if cost.k == profile.best() else "normal")
        ax.set_xlim(-0.55, len(alone) + 0.35)  # room for names on the right
        ax.set_xlabel("candidates K", color=QUIET)
        ax.grid(axis="y", color=INK, alpha=0.08)
        ax.set_axisbelow(True)
    figure.suptitle(f"{profile.policy}, {profile.device}", fontsize=10, color=INK)
    return figure


def _name(ax: Axes, x: float, y: float, text: str, colour: str) -> None:
    """To the right of a bar or a line."""
    ax.annotate(
        text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=10, color=colour, annotation_clip=False
    )


def _latency(ax: Axes, profile: Profile, alone: Sequence[Cost]) -> None:
    places = range(len(alone))
    bottom = [0.0] * len(alone)
    highest = max(cost.median for cost in alone)
    last = len(alone) - 0.69  # the right edge of the last bar
    for phase, (colour, dark) in PHASES.items():
        heights = [getattr(cost, phase) for cost in alone]
        ax.bar(places, heights, 0.62, bottom, color=colour)
        if heights[-1] > SEEN * highest:
            _name(ax, last, max(bottom[-1] + heights[-1] / 2, 0.03 * highest), phase, dark)  # clear of the axis
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    ax.plot(places, [cost.p99 for cost in alone], linestyle="none", marker="_", markersize=16, color=INK)
    _name(ax, last, alone[-1].p99, "99th percentile", INK)
    lines = [(f"{clients} clients", profile.of(clients), PALETTE[3]) for clients in profile.clients[1:]]
    lines += [(f"steps={steps}", profile.of(profile.clients[0], steps), INK) for steps in profile.numbers_of_steps[1:]]
    for marker, (name, costs, colour) in zip(itertools.cycle("os^Dv"), lines):
        times = [cost.median for cost in costs]
        ax.plot(range(len(times)), times, color=colour, marker=marker, markerfacecolor="white", linewidth=1)
        _name(ax, len(times) - 1 + 0.31, times[-1], name, colour)
    limit = profile.budget_ms or alone[0].median * (1 + profile.tolerance)
    ax.axhline(limit, color=PALETTE[2], linewidth=1.2, dashes=(4, 2))
    ax.annotate(
        "budget" if profile.budget_ms else f"K = 1 + {100 * profile.tolerance:.0f} %", (0.0, limit), (2, 2),
        xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=9, color="#00664a",
    )  # fmt: skip
    ax.set_ylabel("milliseconds per round", color=QUIET)


def _memory(ax: Axes, profile: Profile, alone: Sequence[Cost]) -> None:
    ax.set_ylabel("peak memory, MiB", color=QUIET)
    known = [(place, cost) for place, cost in enumerate(alone) if cost.peak is not None and cost.extra is not None]
    places = [place for place, _ in known]
    rest = [(cost.peak or 0.0) - (cost.extra or 0.0) for _, cost in known]
    extra = [cost.extra or 0.0 for _, cost in known]
    ax.bar(places, rest, 0.62, color=FAINT)
    ax.bar(places, extra, 0.62, rest, color=PALETTE[0])
    _name(ax, places[-1] + 0.31, rest[-1] / 2, "before\nthe round", QUIET)
    _name(ax, places[-1] + 0.31, rest[-1] + extra[-1] / 2, "in\nthe round", PALETTE[0])
    ax.set_title(profile.memory, fontsize=9, color=QUIET)


def _memory_in_words(profile: Profile, alone: Sequence[Cost]) -> str:
    known = [(cost.peak, cost.extra) for cost in alone if cost.peak is not None and cost.extra is not None]
    if not known:
        return "memory: not measured"
    peak, extra = max(one for one, _ in known), max(one for _, one in known)
    return f"{profile.memory}: {peak:.0f} MiB, to which a round adds {f'{extra:.0f}' if extra >= 1 else 'less than 1'}"
