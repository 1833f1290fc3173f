"""``keystone demo``: does it help? On a real physics benchmark, with a policy that comes along, in a minute or two."""

from __future__ import annotations

import os
from pathlib import Path

from keystone_robotics.errors import KeystoneError

POLICY, ENV = "metaworld-mixed", "metaworld"
ARMS = ("first", "first:temperature=0.6", "core-mean:k=16", "keystone:k=16")
ABOUT = (
    f"The policy ({POLICY}) learnt from demonstrations in which the hand aims 4 cm to one side in 35 % of the stretches: most "
    "of what it learnt is right, which is where a choice by majority can help."
)
COMMAND = (
    "keystone eval --policy YOUR_POLICY --env YOUR_ENV --episodes 50 --out runs/mine \\\n"
    "    --arm first --arm first:temperature=0.6 --arm core-mean:k=16 --arm keystone:k=16"
)


def run(out: Path = Path("out"), episodes: int = 20, workers: int = min(2, os.cpu_count() or 1)) -> None:
    """Evaluate a policy that comes with KeyStone on Meta-World: one sample per round, one cooler sample, and K = 16
    by the paper's rule and by the one that did best in our study.

    Prints the comparison and writes a page with it, one round's candidates and what became of each, and a film of an episode.

    Args:
        out: folder; the run is in `demo` in it. Run again, it goes on where it was.
        episodes: initial states for each of the six tasks.
        workers: processes.
    """
    if out.exists() and not out.is_dir():
        raise KeystoneError(f"--out {out} is a file: give a folder")
    if episodes < 1 or workers < 1:
        raise KeystoneError("--episodes and --workers: expected 1 or more")
    from rich.console import Console

    from keystone_robotics.cli.evaluate import make_executor
    from keystone_robotics.compare.summary import summarise, summary_table, write_summary
    from keystone_robotics.evaluate.run import evaluate
    from keystone_robotics.evaluate.settings import settings_from
    from keystone_robotics.policies.load import trained_on
    from keystone_robotics.report.demo import write_page

    console = Console()
    settings = settings_from(
        {"policy": POLICY, "env": ENV, "tasks": trained_on(POLICY), "arms": ARMS, "episodes": episodes, "shard": 20,
         "keep_rounds": True}
    )  # fmt: skip
    folder = out / "demo"
    console.print(
        "One sample a round (first), one cooler sample, and sixteen: the mean of their core, and KeyStone's choice",
        highlight=False,
    )
    try:
        evaluation = evaluate(settings, folder, make_executor(workers), console)
        summaries = summarise(evaluation.episodes, evaluation.arms)
        write_summary(folder, summaries)
        console.print(summary_table(summaries))
        console.print("Drawing: one round with all its candidates executed to the end, and an episode …")
        page, problems = write_page(settings, folder, summaries, ABOUT, COMMAND)
    except KeyboardInterrupt:
        raise KeystoneError(f"interrupted; what was done is stored in {folder}, and the same command goes on") from None
    except OSError as error:
        raise KeystoneError(f"cannot write to {folder}: {error.strerror or error}") from None
    for problem in problems:
        console.print(f"[bold yellow]note[/]  {problem}", soft_wrap=True, highlight=False)
    console.print(f"The whole story: {page}", soft_wrap=True, highlight=False)
