"""``keystone reproduce``: the paper's experiments on the policies of the study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from keystone_robotics.errors import KeystoneError, nearest_name

#: Seconds of CPU of `--quick --workloads metaworld-mixed` and of figures, in all processes of the command. Measured on
#: 2026-11-18 and 19 on an AMD EPYC whose cores others used, too.
QUICK_CPU_SECONDS = {"main": 76, "alarms": 32, "adaptive": 37, "selectors": 29, "ablations": 60, "figure2": 20}
QUICK_COST = (
    "seconds of CPU, one workload of Meta-World: measured "
    + ", ".join(f"{name} {seconds}" for name, seconds in QUICK_CPU_SECONDS.items())
    + "; the others were not measured"
)


def run(
    experiment: Annotated[
        Literal[
            "main",
            "search",
            "alarms",
            "adaptive",
            "selectors",
            "spaces",
            "forecast",
            "ablations",
            "choosing",
            "figure1",
            "figure2",
        ],
        tyro.conf.Positional,
    ],
    quick: Annotated[
        bool, tyro.conf.arg(help=f"a test run on a few episodes, too few for a conclusion; {QUICK_COST}")
    ] = False,
    out: Path = Path("out/reproduce"),
    workloads: tuple[str, ...] = (),
    workers: int = 1,
    ray: str | None = None,
) -> None:
    """Reproduce the paper's experiments on the policies of the study; writes Markdown, JSON and figures.

    main: on each workload the best of 50 free changes and the best of 50 arms with K = 16 are chosen on some states and
    compared on others, with K × steps and the latency of every arm. search: other ways to use K candidates, score rescaling
    and a constant noise, against the best free change. alarms: how well disagreement foretells failure, for all scores and
    on states that nothing was calibrated on. adaptive: horizon and K that follow the agreement of the candidates, against
    fixed ones. selectors: TACO and a value function, which it trains, and ensembles over time, against rules that need no
    training. spaces: angles and grippers compared as what they are, against plain numbers. forecast: whether the candidates
    of 50 rounds tell how much K candidates add, from finished workloads of main. ablations: variants of the paper's rule,
    rules of related work, rules that average, and cooled samples. choosing: the runs on which the recommended rule was
    chosen. figure1: the candidates of a round, each executed to the end. figure2: latency and memory against K. The same
    command resumes an interrupted run; results say how much CPU time all runs of it took.

    main takes about 20 minutes of CPU for each workload. How long the other experiments take in full was not measured.

    Args:
        experiment: name.
        out: output folder; a quick run is stored in its subfolder `quick`.
        workloads: a subset of the experiment's workloads; not for figures. Default all.
        workers: number of processes on this machine, or of concurrent shards on Ray.
        ray: run on a Ray cluster: "auto", "local" or an address.
    """
    from rich.console import Console

    from keystone_robotics.evaluate.executors import make_executor
    from keystone_study.reproduce import TABLES
    from keystone_study.reproduce.cpu_time import add_cpu_hours, counted_cpu_time
    from keystone_study.reproduce.figure1 import draw_figure1
    from keystone_study.reproduce.figure2 import draw_figure2

    console = Console(soft_wrap=True, highlight=False)
    out = out / "quick" if quick else out
    executor = make_executor(workers, ray)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if experiment in TABLES:
            known, run = TABLES[experiment]
            for name in workloads:
                if name not in known:
                    raise KeystoneError(f"{experiment} has no workload {name!r}: {nearest_name(name, known)}")
            times, command = out / "cpu-seconds.json", " ".join((experiment, *workloads))
            with counted_cpu_time(times, command):
                path = run(out, executor, console, workloads or known, quick)
            add_cpu_hours(path.with_suffix(".json"), times, command)
            console.print(path.read_text(), markup=False)
            console.print(f"Written: {path} and {path.stem}.json")
            return
        if workloads:
            raise KeystoneError(f"--workloads is not for figures: {experiment} has a workload of its own")
        first = experiment == "figure1"
        paths = draw_figure1(out, executor, console, quick) if first else draw_figure2(out, console, quick)
        console.print("Written: " + ", ".join(str(path) for path in paths))
    except KeyboardInterrupt:
        raise KeystoneError(
            f"interrupted; finished episodes are stored in {out}, and the same command resumes"
        ) from None
    except OSError as error:
        raise KeystoneError(f"{error.filename or out}: {error.strerror or error}") from None
