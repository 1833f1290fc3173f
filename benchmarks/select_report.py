"""The selector benchmark's results as tables in Markdown and as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keystone_robotics.report.style import INK, PALETTE, QUIET, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = dict[str, Any]
#: What each path is called in the result files, and in tables.
FAST = {"compiled": "with numba", "early exit": "without numba"}
COLOURS = {"compiled": PALETTE[0], "early exit": PALETTE[2], "reference": PALETTE[1]}
BRANCHES = {"one way": "guard", "two ways": "clustering, two modes", "isotropic": "clustering, isotropic"}


PAGE = """\
# Selector benchmark

`{command}`, {date}, {cpu}, one thread, Python {python}, torch {torch}, numpy {numpy}, numba {numba}.

Ratios of interleaved runs (CPU time of the thread, median over repeats), never absolute times.

## Speed-up over the reference

The reference is the paper's listing in torch (`benchmarks/reference.py`). Each number is a whole public call on chunks of
50 × 7 float32, over several different inputs.

{speedups}
{core_mean}
## Exactness

Share of picks equal to a float64 oracle that works from direct differences, KeyStone / reference; for KeyStone the lowest of
its two paths. {trials} rounds per cell, half without structure and half of two modes; all start k-means from the same two
candidates. The chunks hold values about 1 plus an offset, and their candidates differ by a spread. The reference gets
bfloat16 as float32, because `torch.cdist` takes no bfloat16 on a CPU; from K = 26 on, `torch.cdist` multiplies matrices, and
small distances cancel. All combinations of spread and offset are in `select.json`.

With no offset:

{by_spread}

With a spread of 0.1:

{by_offset}

## Scaling

Time of one call on two modes, in units of the one with numba, K = 16 and chunks of 50 × 7.

{by_candidates}

{by_numbers}

![Time against the number of candidates and the size of a chunk](select_scaling.png)
"""


def markdown(results: Results) -> str:
    """All tables, with what was measured and where."""
    exactness = results["exactness"]
    return PAGE.format(
        **results["machine"],
        trials=exactness[0]["trials"],
        speedups=_speedups(results["speedups"]),
        core_mean=_core_mean(results.get("core_mean", [])),  # older result files do not have it
        by_spread=_exactness(exactness, "spread", "offset", 0.0),
        by_offset=_exactness(exactness, "offset", "spread", 0.1),
        by_candidates=_scaling(results["by_candidates"], "k", "K"),
        by_numbers=_scaling(results["by_numbers"], "numbers", "T × D"),
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows])


def _ratio(value: float) -> str:
    """Two digits: more would be noise."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _speedups(rows: list[dict[str, Any]]) -> str:
    return _table(
        ["branch", "K", "B", *FAST.values()],
        [
            [
                BRANCHES[row["cloud"]],
                str(row["k"]),
                str(row["batch"]),
                *(f"{_ratio(row[name]['median'])}×" for name in FAST),
            ]
            for row in rows
        ],
    )


def _core_mean(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    cells = [[BRANCHES[row["cloud"]], str(row["k"]), str(row["batch"]), _ratio(row["ratio"])] for row in rows]
    table = _table(["branch of keystone", "K", "B", "core-mean / keystone"], cells)
    return f"\nTime of rule `core-mean` in units of rule `keystone`, both with numba:\n\n{table}\n"


def _exactness(rows: list[dict[str, Any]], along: str, fixed: str, value: float) -> str:
    """A row for each dtype and K, a column for each value of ``along``, with ``fixed`` at one value."""
    columns = list(dict.fromkeys(row[along] for row in rows))
    lines: dict[tuple[str, int], list[str]] = {}
    for row in sorted(rows, key=lambda row: (row["dtype"] != "float32", row["k"], columns.index(row[along]))):
        if row[fixed] == value:
            ours = min(row[name] for name in FAST)
            lines.setdefault((row["dtype"], row["k"]), []).append(f"{ours:.0%} / {row['reference']:.0%}")
    return _table(
        ["dtype", "K", *(f"{along} {column:g}" for column in columns)],
        [[dtype, str(k), *cells] for (dtype, k), cells in lines.items()],
    )


def _scaling(rows: list[dict[str, Any]], key: str, name: str) -> str:
    return _table(
        [name, *FAST.values(), "reference"],
        [[str(row[key]), *(_ratio(row[path]) for path in (*FAST, "reference"))] for row in rows],
    )


def figure(results: Results) -> Figure:
    """Relative time against K and against the numbers in a chunk, on logarithmic axes."""
    drawn, (left, right) = new_figure(9.0, 4.2, columns=2)
    _curves(left, results["by_candidates"], "k", "candidates K   (chunks of 50 × 7)")
    _curves(right, results["by_numbers"], "numbers", "numbers in a chunk T × D   (K = 16)")
    left.set_ylabel("time, with numba at K = 16 and 50 × 7 being 1", color=QUIET)
    highest = max(ax.get_ylim()[1] for ax in (left, right))
    for ax in (left, right):
        ax.set_ylim(0.35, highest)
    return drawn


def _curves(ax: Axes, rows: list[dict[str, Any]], key: str, label: str) -> None:
    places = [row[key] for row in rows]
    ax.set_xscale("log", base=2 if key == "k" else 10)
    ax.set_yscale("log")
    ax.axhline(1, color=QUIET, linewidth=0.8, alpha=0.5)
    for name, colour in COLOURS.items():
        times = [row[name] for row in rows]
        ax.plot(places, times, color=colour, linewidth=2.2, marker="o", markersize=4.5)
        below = name == "compiled"  # so that the label does not lie on the line at 1
        ax.annotate(
            FAST.get(name, name), (places[0], times[0]), (0, -8 if below else 8), textcoords="offset points", color=colour,
            weight="bold", va="top" if below else "bottom",
        )  # fmt: skip
    ax.set_xticks(places, [str(place) for place in places])
    ax.minorticks_off()
    ax.set_xlabel(label, color=QUIET)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    ax.grid(axis="y", color=INK, alpha=0.08)
