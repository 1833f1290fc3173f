"""``python -m benchmarks.select_speed [--quick]``: how fast, how exact, and how it grows.

Writes select.json, select.md, select_scaling.png and select_scaling.svg to benchmarks/results, or with ``--quick`` a rough
version in less time to benchmarks/results/quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import harness


def main(quick: bool) -> None:
    """Measure with a progress bar, then write."""
    import torch

    from benchmarks import select_report
    from keystone_robotics.report import style

    torch.set_num_threads(1)
    found = measure(quick)
    machine = harness.describe_machine(harness.command_of("select_speed", quick))
    results = {"machine": machine, **found, "rows": rows(found)}
    folder = harness.results_folder(quick)
    harness.write_json("select", results, quick)
    (folder / "select.md").write_text(select_report.markdown(results))
    style.save(select_report.figure(results), folder, "select_scaling")
    print(f"wrote {folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder}/select.md")


def rows(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The speed-ups, and the time of "core-mean", by case, as `benchmarks.regression` compares them."""
    speedups = [
        {"case": f"{row['cloud']}, K = {row['k']}, B = {row['batch']}, {path}", "ratio": row[path]["median"]}
        for row in found["speedups"]
        for path in ("compiled", "early exit")
    ]
    core_mean = [
        {"case": f"{row['cloud']}, K = {row['k']}, B = {row['batch']}, core-mean over keystone", "ratio": row["ratio"],
         "better": "lower"}
        for row in found["core_mean"]
    ]  # fmt: skip
    return speedups + core_mean


def measure(quick: bool) -> dict[str, list[dict[str, Any]]]:
    """All measurements, by table."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from benchmarks.select_clouds import CLOUDS
    from benchmarks.select_exactness import cases, shares
    from benchmarks.select_ratios import DIMS, QUICK, STEPS, Effort, core_mean, relative_times, speedups

    effort = QUICK if quick else Effort()
    tables = {
        "speedups": [(speedups, cloud, k, b) for cloud in CLOUDS for k in effort.sizes for b in effort.batches],
        "core_mean": [(core_mean, cloud, b) for cloud in CLOUDS for b in (1, 8)],
        "by_candidates": [(relative_times, (1, k, STEPS, DIMS)) for k in effort.candidates],
        "by_numbers": [(relative_times, (1, 16, STEPS, dims)) for dims in effort.dims],
        "exactness": [(shares, *case) for case in cases()],
    }
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # refreshed between measurements only: a thread that redraws would take turns with what is timed
    with Progress(*columns, auto_refresh=False) as progress:
        for name, calls in tables.items():
            task = progress.add_task(name.replace("_", " "), total=len(calls))
            for call, *arguments in calls:
                results[name].append(call(*arguments, effort))
                progress.update(task, advance=1, refresh=True)
    return results


if __name__ == "__main__":
    main(harness.parse_quick("select_speed", __doc__))
