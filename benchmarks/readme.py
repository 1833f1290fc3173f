"""Writes the tables of README and docs from ``benchmarks/results``: ``python -m benchmarks.readme`` (part of make bench)."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from benchmarks import fast_tables
from benchmarks.harness import RESULTS, ROOT
from keystone_robotics.report.collect import read_collected, table_rows
from keystone_robotics.report.inspection import arm_rows
from keystone_robotics.tables import as_markdown
from keystone_study.reproduce.adaptive_run import FEW, MANY, ArmRow, fixed_at_equal_rounds
from keystone_study.reproduce.claims import RECOMMENDED
from keystone_study.reproduce.forecast import Correlation, correlation_table
from keystone_study.reproduce.main import MainResult
from keystone_study.reproduce.main_tables import claims_table, short_table
from keystone_study.reproduce.selectors_run import SelectorRow, training_cost
from keystone_study.reproduce.spaces import SpaceRow, space_table
from keystone_study.reproduce.tables import points
from keystone_study.reproduce.workloads import MAIN_WORKLOADS, WORKLOADS

BRANCHES = {"one way": "guard: one group", "two ways": "clustering: two modes", "isotropic": "clustering: no structure"}


def select_table() -> str:
    """Speed-ups at K = 16 as a Markdown table, from ``select.json``."""
    results = json.loads((RESULTS / "select.json").read_text())
    rows = [["K = 16", "rounds per call", "with numba", "without"]]
    for row in results["speedups"]:
        if row["k"] == 16:
            ratios = (f"{row[name]['median']:.2g}×" for name in ("compiled", "early exit"))
            rows.append([BRANCHES[row["cloud"]], str(row["batch"]), *ratios])
    machine = results["machine"]
    return (
        f"{as_markdown(rows)}\n\n({machine['cpu']}, Python {machine['python']}, torch {machine['torch']}, "
        f"numba {machine['numba']})"
    )


def main_results() -> list[MainResult]:
    """The workloads of the main study that were run."""
    paths = (RESULTS / "main" / f"{name}.json" for name in MAIN_WORKLOADS)
    return [MainResult.from_dict(json.loads(path.read_text()), WORKLOADS[path.stem]) for path in paths if path.exists()]


def readme_table() -> str:
    """Rows that workloads ask for themselves (not for their results), and a line over all."""
    results = main_results()
    claims = {row[0]: row[1:] for row in claims_table(results)}
    gain, _, cost = claims[f"`{RECOMMENDED}`, the same for all, against the policy as it is"]
    to_free = claims[f"`{RECOMMENDED}`, the same for all, against the best free change"][0]
    kinds = sum(not result.workload.name.endswith("-again") for result in results)
    twice = f"{kinds} workloads, {len(results) - kinds} of them with a second training"
    legend = (
        "Success, and in brackets the time of an executed step. The best free change was chosen on other initial states. Δ in "
        "points, with a paired 95 % interval; bold: clear of zero after Holm's correction.\n\n"
        f"**Over {len(results)} policies** ({twice}): **{gain} points** against the policy as it is, in "
        f"{cost.removeprefix('× ')} of the time; {to_free} points against the best free change."
    )
    return as_markdown(short_table([one for one in results if one.workload.in_readme])) + "\n\n" + legend


def recommended_table() -> str:
    """The same table with all workloads."""
    return as_markdown(short_table(main_results()))


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
    titles = {
        "overview": "AUROC within task, on fresh states:",
        "false_alarms": "False alarms:",
        "written": "Alarms that `calibrate` writes:",
    }
    tables = (f"{title}\n\n{as_markdown(results[name])}" for name, title in titles.items())
    return "\n\n".join([*tables, results["legend"]])


def adaptive_table() -> str:
    """Adaptive horizon and K beside fixed ones, from ``adaptive.json``, which ``keystone reproduce adaptive`` wrote."""
    path = RESULTS / "adaptive.json"
    if not path.exists():
        return "(not run yet: `keystone reproduce adaptive`)"
    results = json.loads(path.read_text())
    heading = [
        "workload", "arm", "success, %", "fixed, at equal rounds, %", "rounds", "samples per round", "Δ of the adaptive arm",
    ]  # fmt: skip
    rows = [
        [
            WORKLOADS[name].title, f"`{row.arm}`", f"{100 * row.rate:.1f}",
            fixed_at_equal_rounds(group) if row is group[0] else "–", f"{row.rounds:.1f}", f"{row.drawn:.1f}",
            points(row.to_adaptive),
        ]
        for name, groups in results["workloads"].items()
        for group in ([ArmRow.from_dict(row) for row in rows] for rows in groups.values())
        for row in group
    ]  # fmt: skip
    return as_markdown([heading, *rows]) + "\n\n" + results["legend"]


def adaptive_latency_table() -> str:
    """What the second draw of adaptive K costs and saves, from ``adaptive.json``."""
    results = json.loads((RESULTS / "adaptive.json").read_text())
    rows = []
    for name, groups in results["workloads"].items():
        adaptive, full, _ = (ArmRow.from_dict(row) for row in groups["adaptive K"])
        agree, disagree, expected = adaptive.latency
        (at_once,) = full.latency
        even, agreed = (disagree - at_once) / (disagree - agree), (MANY - adaptive.drawn) / (MANY - FEW)
        times = [f"{value:.2f}" for value in (agree, disagree, at_once, expected)]
        rows.append([WORKLOADS[name].title, f"`{adaptive.arm}`", *times, f"{even:.0%}", f"{agreed:.0%}"])
    heading = [
        "workload", "arm", "the few agree", "they disagree", f"{MANY} at once", "expected", "saves time if more agree than",
        "agreed",
    ]  # fmt: skip
    return as_markdown([heading, *rows]).replace("%", " %") + (
        "\n\nCPU time of a round at batch size 1, relative to the policy as it is; expected at the share of rounds that agreed."
    )


def selectors_table() -> str:
    """Learned selectors and ensembles beside rules, from ``selectors.json``, which ``keystone reproduce selectors`` wrote."""
    results = json.loads((RESULTS / "selectors.json").read_text())
    workloads = {
        WORKLOADS[name].title: [SelectorRow.from_dict(row) for row in rows]
        for name, rows in results["workloads"].items()
    }
    first = next(iter(workloads.values()))
    rows = [
        [
            one.title,
            *(f"{100 * rows[number].rate:.1f} ({points(rows[number].to_first)})" for rows in workloads.values()),
            training_cost(one.training),
            f"{one.time.step:.2f}",
        ]
        for number, one in enumerate(first)
    ]
    heading = ["arm", *(f"{title}, % (Δ to K = 1)" for title in workloads), "training (first policy)", "× step"]
    return as_markdown([heading, *rows]) + "\n\n" + results["legend"]


def spaces_table() -> str:
    """Angles and grippers as what they are, from ``spaces.json``, which ``keystone reproduce spaces`` wrote."""
    results = json.loads((RESULTS / "spaces.json").read_text())
    rows = {name: [SpaceRow.from_dict(row) for row in rows] for name, rows in results["workloads"].items()}
    return as_markdown(space_table(rows)) + "\n\n" + results["legend"]


def forecast_table() -> str:
    """When does it help? From ``forecast.json``, which ``keystone reproduce forecast`` wrote."""
    results = json.loads((RESULTS / "forecast.json").read_text())
    correlations = [Correlation(**one) for one in results["correlations"]]
    return f"{as_markdown(correlation_table(correlations))}\n\n**{results['verdict']}**"


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


def page_line() -> str:
    """Size of the report's page and how fast it opens, from ``report_page.json``."""
    results = json.loads((RESULTS / "report_page.json").read_text())
    cases = "; ".join(
        f"{row['case']}: {row['bytes'] / 1e6:.1f} MB, opens in {row['open_ms'] / 1e3:.1f} s"
        + f", with the rounds of {row['episodes_with_rounds']} of {row['stored_with_rounds']}"
        * bool(row["stored_with_rounds"])
        for row in results["rows"]
    )
    machine = results["machine"]
    return (
        "Measured in Chromium, K = 16, 16 steps × 7 dimensions, 20 rounds an episode: "
        f"{cases}. ({machine['cpu']}, {machine['date']})"
    )


def rerun_line() -> str:
    """What `keystone.RerunLog` costs a round, from ``rerun_log.json``."""
    results = json.loads((RESULTS / "rerun_log.json").read_text())
    times: dict[str, list[dict[str, float]]] = {}
    for row in results["rows"]:
        times.setdefault(row["case"].partition(", ")[2], []).append(row)
    each = "; ".join(
        f"{k}: {_range([row['wall_ms'] for row in rows])} ms of wall-clock time, "
        f"{_range([row['listener_ms'] for row in rows])} ms of CPU time without a pause between rounds"
        for k, rows in times.items()
    )
    most = max(row["all_ms"] for row in results["rows"])
    machine = results["machine"]
    return (
        f"What the listener takes in a round of 16 steps × 7 dimensions (medians), {each}. With the thread that draws and "
        f"writes, a round costs at most {most:.2f} ms of CPU time. (`{machine['command']}`, {machine['cpu']}, "
        f"{machine['date']})"
    )


def _range(values: list[float]) -> str:
    """Low and high, if they differ as they are written.

    >>> _range([0.141, 0.178]), _range([0.0219, 0.0227])
    ('0.14 to 0.18', '0.02')
    """
    return " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values))))


def inspect_table() -> str:
    """What `keystone inspect` said about a trained policy, from ``inspect.json``: a part of what it wrote."""
    results = json.loads((RESULTS / "inspect.json").read_text())
    ways = ", ".join(f"{number} in {count}" for number, count in results["ways"].items())
    worst = results["worst"][0]
    return (
        f"{as_markdown(arm_rows(results))}\n\n"
        f"{results['frames']} frames of {results['episodes']} episodes ({results['dataset']}; it was trained on others, for "
        f"{results['training_steps']} steps). Ways of the candidates: {ways} frames. Worst: episode "
        f"{worst['episode']}, frame {worst['frame']}, dispersion {worst['dispersion']:.2f}. Page: "
        f"{results['page_bytes'] / 1e3:.0f} kB. ({results['machine']['date']})"
    )


def gpu_table() -> str:
    """What others measured on their GPUs, from ``gpu/*.json``, which ``keystone recipes NAME --collect`` wrote."""
    files = [read_collected(path) for path in sorted((RESULTS / "gpu").glob("*.json"))]
    return as_markdown(table_rows(files)) if files else "**Empty: no measurement on a GPU has been sent in yet.**"


def serve_table() -> str:
    """`keystone serve` against the servers that its protocols come from, from ``serve.json``."""
    results = json.loads((RESULTS / "serve.json").read_text())
    memory, tried, machine = results["memory"], results["fuzz"], results["machine"]
    first, last = memory["mib"][0], memory["mib"][-1]
    parts = [
        _serve_rows(results["throughput"], policy)
        + f"\n\nThe model alone, 8 robots in a round: × {results['model_bound'][policy]['8']:.2g} per CPU second."
        for policy in dict.fromkeys(row["policy"] for row in results["throughput"])
    ]
    return "\n\n".join(parts) + (
        f"\n\nResident memory over {memory['requests']} requests and {memory['reconnects']} reconnects: {first} MiB after "
        f"{memory['requests'] // len(memory['mib'])} requests, {last} MiB at the end. "
        f"Fuzzed messages without a crash, a hang or a wrong reply to somebody else: "
        f"{', '.join(f'{name} {count}' for name, count in tried.items())}. The slowest of {len(results['reducers'])} "
        f"reducers takes {max(results['reducers'].values()):.2f} ms of CPU for 16 candidates (50 steps, 7 dimensions).\n\n"
        f"({machine['cpu']}, two cores with other load of {machine['load_average']:.0f}, "
        f"{'from which servers and clients had real-time priority' if machine['real_time'] else 'at the same priority'}, "
        f"torch {machine['torch']}, {machine['date']})"
    )


def both_harnesses_table() -> str:
    """One checkpoint by `lerobot-eval` and `keystone eval`, from ``both_harnesses.json``."""
    path = RESULTS / "both_harnesses.json"
    if not path.exists():
        return "(not run yet)"
    results = json.loads(path.read_text())
    heads = ["arm", "`keystone eval`", "`lerobot-eval`", "episodes that differ", "Δ to `first`", "one round"]
    cells = []
    for row in results["arms"]:
        low, high = (100 * bound for bound in row["interval"])
        gap = "–" if row["arm"] == "first" else f"{100 * row['difference']:+.0f} [{low:+.0f}, {high:+.0f}]"
        counts = (f"{sum(row[tool])} of {len(row[tool])}" for tool in ("keystone", "lerobot"))
        cells.append([f"`{row['arm']}`", *counts, str(row["differing"]), gap, f"{row['round_ms']:.0f} ms"])
    plain, machine, training = results["plain"]["lerobot"], results["machine"], results["training"]
    legend = (
        f"After {training['steps']} training steps of {training['batch_size']} frames. "
        f"Successes on the same initial states; Δ in points with a paired 95 % interval. `lerobot-eval` without KeyStone, "
        f"whose noise is torch's: {sum(plain)} of {len(plain)}. (`{machine['command']}`, {machine['cpu']}, one thread, "
        f"torch {machine['torch']}, {machine['date']})"
    )
    return f"{as_markdown([heads, *cells])}\n\n{legend}"


def _number(value: float | None, digits: str) -> str:
    return "–" if value is None else f"{value:{digits}}"


def _serve_rows(throughput: list[dict[str, Any]], policy: str) -> str:
    """Openpi's protocol with all numbers of robots; the others with eight."""
    heading = [
        *("protocol", "robots", "server", "replies/s", "×", "p50 ms", "p95 ms", "p99 ms", "CPU ms/reply", "× CPU"),
        *("robots/round", "mean K", "late", "lost"),
    ]
    rows = [
        row for row in throughput if row["policy"] == policy and (row["protocol"] == "openpi" or row["clients"] == 8)
    ]
    deadline = next(row["deadline_ms"] for row in rows if "deadline_ms" in row)
    cells = [
        [
            row["protocol"], str(row["clients"]), row["server"].replace("stock", "its own"), f"{row['per_second']:.0f}",
            _number(row.get("ratio"), ".2g"), *(_number(row[name], ".3g") for name in ("p50_ms", "p95_ms", "p99_ms")),
            _number(row["cpu_ms"], ".1f"), _number(row.get("cpu_ratio"), ".2g"),
            "1" if row["batch"] is None else f"{row['batch']:.1f}",
            f"{row['k_asked'] if row['k'] is None else row['k']:.3g}",
            "–" if row["late"] is None else f"{100 * row['late']:.2g} %", f"{100 * row['lost']:.3g} %",
        ]
        for row in rows
    ]  # fmt: skip
    return f"`{policy}`, K = {rows[0]['k_asked']}, deadline {deadline:g} ms:\n\n{as_markdown([heading, *cells])}"


#: The pages with tables, and the function that makes each table.
PAGES = {
    "README.md": {"main": readme_table},
    "docs/select.md": {"select": select_table},
    "docs/evaluate.md": {"throughput": throughput_line},
    "docs/study.md": {
        "main": partial(main_study, "claims", "overview"),
        "recommended": recommended_table,
        "selectors": selectors_table,
        "spaces": spaces_table,
        "forecast": forecast_table,
    },
    "docs/monitor.md": {"alarms": alarms_table, "cost": alarm_cost_table},
    "docs/adaptive.md": {"adaptive-latency": adaptive_latency_table, "adaptive": adaptive_table},
    "docs/report.md": {"page": page_line, "rerun": rerun_line, "inspect": inspect_table},
    "docs/gpu.md": {"gpu": gpu_table},
    "docs/serve.md": {"serve": serve_table},
    "docs/train.md": {"both-harnesses": both_harnesses_table},
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
