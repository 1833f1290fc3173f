"""Writes the tables of README and docs from ``benchmarks/results``: ``python -m benchmarks.readme`` (part of make bench)."""

from __future__ import annotations

import json
import re
from functools import partial

from benchmarks import fast_tables
from benchmarks.harness import RESULTS, ROOT
from keystone_robotics.report.collect import read_collected, table_rows
from keystone_robotics.tables import as_markdown
from keystone_study.reproduce.analysis import Difference
from keystone_study.reproduce.claims import RECOMMENDED
from keystone_study.reproduce.main import MainResult
from keystone_study.reproduce.main_tables import claims_table, short_table
from keystone_study.reproduce.tables import points
from keystone_study.reproduce.workloads import MAIN_WORKLOADS, WORKLOADS

BRANCHES = {"one way": "guard: one group", "two ways": "clustering: two modes", "isotropic": "clustering: no structure"}


def select_table() -> str:
    """Speed-ups at K = 16 as a Markdown table, from ``select.json``."""
    results = json.loads((RESULTS / "select.json").read_text())
    lines = ["| K = 16 | rounds per call | with numba | without |", "|---|---|---|---|"]
    for row in results["speedups"]:
        if row["k"] == 16:
            ratios = (f"{row[name]['median']:.2g}×" for name in ("compiled", "early exit"))
            lines.append(f"| {BRANCHES[row['cloud']]} | {row['batch']} | {' | '.join(ratios)} |")
    machine = results["machine"]
    lines.append("")
    lines.append(f"({machine['cpu']}, Python {machine['python']}, torch {machine['torch']}, numba {machine['numba']})")
    return "\n".join(lines)


def recommended_table() -> str:
    """The policy as it is, the best free change, KeyStone as recommended: workloads in ``main/``, each policy once, and a line
    over all, with those that were trained again.
    """
    paths = (RESULTS / "main" / f"{name}.json" for name in MAIN_WORKLOADS)
    results = [
        MainResult.from_dict(json.loads(path.read_text()), WORKLOADS[path.stem]) for path in paths if path.exists()
    ]
    once = [result for result in results if not result.workload.name.endswith("-again")]
    wanted = f"`{RECOMMENDED}`, the same for all, against the policy as it is"
    claim = next(row for row in claims_table(results) if row[0] == wanted)
    missing = (
        f" ({len(MAIN_WORKLOADS) - len(results)} more have not run yet)" if len(results) < len(MAIN_WORKLOADS) else ""
    )
    legend = (
        f"Over {len(results)} policies of the study{missing}, {len(results) - len(once)} of them trained again in the "
        f"same way: **{claim[1]} points at {claim[3]} of the time.** Success in %, and × the time of an executed step against "
        f"the policy as it is. *Best free change*: the best of 50 settings with one sample, chosen on other initial states. "
        f"*As recommended*: `{RECOMMENDED}`. Δ in points, with a paired 95 % interval; bold: it stays clear of zero after "
        f"Holm's correction."
    )
    return as_markdown(short_table(once)) + "\n\n" + legend


def main_study(*tables: str) -> str:
    """Tables of ``main.json``, which ``keystone reproduce main`` wrote, and their legend."""
    results = json.loads((RESULTS / "main.json").read_text())
    return "\n\n".join([*(as_markdown(results[name]) for name in tables), results["legend"]])


def alarms_table() -> str:
    """How well disagreement foretells failure, from ``alarms.json``, which ``keystone reproduce alarms`` wrote."""
    path = RESULTS / "alarms.json"
    if not path.exists():
        return "(not run yet: `keystone reproduce alarms`)"
    results = json.loads(path.read_text())
    tables = [as_markdown(results[name]) for name in ("overview", "false_alarms")]
    return "AUROC within task, on fresh states:\n\n" + "\n\nFalse alarms:\n\n".join(tables) + "\n\n" + results["legend"]


def adaptive_table() -> str:
    """Adaptive horizon and K beside fixed ones, from ``adaptive.json``, which ``keystone reproduce adaptive`` wrote."""
    path = RESULTS / "adaptive.json"
    if not path.exists():
        return "(not run yet: `keystone reproduce adaptive`)"
    results = json.loads(path.read_text())
    heading = ["workload", "arm", "success, %", "rounds", "samples per round", "Δ of the adaptive arm"]
    rows = [
        [
            WORKLOADS[name].title, f"`{row['arm']}`", f"{100 * row['rate']:.1f}", f"{row['rounds']:.1f}", f"{row['drawn']:.1f}",
            points(None if row["to_adaptive"] is None else Difference(**row["to_adaptive"])),
        ]
        for name, groups in results["workloads"].items()
        for group in groups.values()
        for row in group
    ]  # fmt: skip
    return as_markdown([heading, *rows]) + "\n\n" + results["legend"]


def alarm_cost_table() -> str:
    """Time of an alarm in a round, from ``monitor.json``."""
    results = json.loads((RESULTS / "monitor.json").read_text())
    heading = ["score", "µs", "× selecting"]
    rows = [[row["case"], f"{row['microseconds']:.0f}", f"{row['ratio']:.2g}"] for row in results["rows"]]
    machine = results["machine"]
    return as_markdown([heading, *rows]) + f"\n\n({machine['cpu']}, one thread, torch {machine['torch']})"


def throughput_line() -> str:
    """Episodes per second, from ``closed_loop.json``."""
    results = json.loads((RESULTS / "closed_loop.json").read_text())
    rates = {(row["arm"], row["processes"]): row["per_second"] for row in results["throughput"]}
    one, many = (
        f"{rates[arm, 1]:.1f} with one process, {rates[arm, 2]:.1f} with two" for arm in ("first", "keystone:k=16")
    )
    machine = results["machine"]
    return (
        f"Episodes per second of Meta-World, set-up included: {one} at K = 1; {many} at K = 16. "
        f"({machine['cpu']}, Python {machine['python']}, torch {machine['torch']}, {machine['date']})"
    )


def gpu_table() -> str:
    """What others measured on their GPUs, from ``gpu/*.json``, which ``keystone recipes NAME --collect`` wrote."""
    files = [read_collected(path) for path in sorted((RESULTS / "gpu").glob("*.json"))]
    return as_markdown(table_rows(files)) if files else "**Empty: no measurement on a GPU has been sent in yet.**"


def serve_table() -> str:
    """`keystone serve` against openpi's own server, from ``serve.json``."""
    results = json.loads((RESULTS / "serve.json").read_text())
    heading = ["clients", "server", "requests/s", "×", "p50 ms", "p95 ms", "p99 ms", "CPU ms/request", "mean K", "late"]
    rows = [
        [
            str(row["clients"]), row["server"], f"{row['per_second']:.0f}", f"{row['ratio']:.2g}",
            *(f"{row[name]:.0f}" for name in ("p50_ms", "p95_ms", "p99_ms")), f"{row['cpu_ms']:.1f}",
            f"{row['k_asked'] if row['k'] is None else row['k']:.3g}",
            "–" if row["late"] is None else f"{100 * row['late']:.2g} %",
        ]
        for row in results["throughput"]
    ]  # fmt: skip
    deadline = next(row["deadline_ms"] for row in results["throughput"] if "deadline_ms" in row)
    memory, tried, machine = results["memory"], results["fuzz"], results["machine"]
    first, last = memory["mib"][0], memory["mib"][-1]
    return (
        f"`{results['throughput'][0]['policy']}`, K = {results['throughput'][0]['k_asked']}, deadline {deadline:g} ms:\n\n"
        f"{as_markdown([heading, *rows])}\n\n"
        f"Resident memory over {memory['requests']} requests and {memory['reconnects']} reconnects: {first} MiB after "
        f"{memory['requests'] // len(memory['mib'])} requests, {last} MiB at the end. "
        f"Fuzzed messages without a crash, a hang or a wrong reply to somebody else: "
        f"{', '.join(f'{name} {count}' for name, count in tried.items())}.\n\n"
        f"({machine['cpu']}, torch {machine['torch']}, {machine['date']})"
    )


#: The pages with tables, and the function that makes each table.
PAGES = {
    "README.md": {"main": recommended_table},
    "docs/select.md": {"select": select_table},
    "docs/evaluate.md": {"throughput": throughput_line},
    "docs/study.md": {"main": partial(main_study, "claims", "overview")},
    "docs/monitor.md": {"alarms": alarms_table, "cost": alarm_cost_table},
    "docs/adaptive.md": {"adaptive": adaptive_table},
    "docs/gpu.md": {"gpu": gpu_table},
    "docs/serve.md": {"serve": serve_table},
    "docs/fast.md": {
        "denoise": fast_tables.denoise_table,
        "whole-round": fast_tables.round_table,
        "whole-round-upstream": fast_tables.upstream_round_table,
    },
}


def filled(page: str) -> str:
    """A page with every table between its markers replaced by the current one."""
    text = (ROOT / page).read_text()
    for name, make in PAGES[page].items():
        table = make()
        pattern = re.compile(f"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text, count = pattern.subn(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
        if count != 1:
            raise SystemExit(f"{page}: expected the markers of the table {name!r} once, found them {count} times")
    return text


def write() -> None:
    """Update all pages."""
    for page in PAGES:
        (ROOT / page).write_text(filled(page))


if __name__ == "__main__":
    write()
