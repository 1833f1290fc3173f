"""``keystone demo``: one sample against K candidates on Meta-World, with a policy of the study, in a minute or two."""

from __future__ import annotations

import os
from pathlib import Path

from keystone_robotics.errors import KeystoneError

POLICY, ENV = "metaworld-mixed", "metaworld"
ARMS = ("first", "first:steps=2", "core-mean:k=16,steps=2", "keystone:k=16")
ABOUT = (
    f"The policy ({POLICY}) was trained on demonstrations in which the hand aims 4 cm to one side in 35 % of the segments: the "
    "larger mode is right, so a choice by majority can help."
)
COMMAND = (
    "keystone eval --policy YOUR_POLICY --env YOUR_ENV --episodes 50 --out runs/mine \\\n"
    "    --arm first --arm first:steps=2 --arm core-mean:k=16,steps=2 --arm keystone:k=16"
)


def run(out: Path = Path("out"), episodes: int = 20, workers: int = min(2, os.cpu_count() or 1)) -> None:
    """Evaluate a policy of the study on Meta-World: one sample per round, one sample of two denoising steps, K = 16 as
    recommended (core-mean, two steps), and K = 16 with the paper's rule.

    Prints the comparison and writes a page with it, the outcome of each candidate of one round, and a film of an episode.

    Args:
        out: output folder; the run is stored in its subfolder `demo`. The same command resumes an interrupted run.
        episodes: initial states for each of the six tasks.
        workers: number of processes.
    """
    if out.exists() and not out.is_dir():
        raise KeystoneError(f"--out {out} is a file: expected a folder")
    if episodes < 1 or workers < 1:
        raise KeystoneError("--episodes and --workers: expected 1 or more")
    from rich.console import Console

    from keystone_robotics.compare.summary import summarise, summary_table, write_summary
    from keystone_robotics.evaluate.config import config_from
    from keystone_robotics.evaluate.executors import make_executor
    from keystone_robotics.evaluate.run import evaluate
    from keystone_robotics.policies.load import trained_on
    from keystone_study.report.demo import write_page

    console = Console()
    settings = config_from(
        {"policy": POLICY, "env": ENV, "tasks": trained_on(POLICY), "arms": ARMS, "episodes": episodes, "shard": 20,
         "keep_rounds": True}
    )  # fmt: skip
    folder = out / "demo"
    console.print(
        "One sample per round (first), one of two denoising steps, and K = 16 as recommended (core-mean, two steps) and with "
        "the paper's rule (keystone)",
        highlight=False,
    )
    try:
        evaluation = evaluate(settings, folder, make_executor(workers), console)
        summaries = summarise(evaluation.episodes, evaluation.arms)
        write_summary(folder, summaries)
        console.print(summary_table(summaries), crop=False)
        console.print("Drawing: one round with all its candidates executed to the end, and an episode …")
        page, problems = write_page(settings, folder, ABOUT, COMMAND)
    except KeyboardInterrupt:
        raise KeystoneError(
            f"interrupted; finished episodes are stored in {folder}, and the same command resumes"
        ) from None
    except OSError as error:
        raise KeystoneError(f"cannot write to {folder}: {error.strerror or error}") from None
    for problem in problems:
        console.print(f"[bold yellow]note[/]  {problem}", soft_wrap=True, highlight=False)
    console.print(f"Report: {page}", soft_wrap=True, highlight=False)
