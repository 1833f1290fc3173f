"""``keystone train``: collect demonstrations from a scripted expert and train a small policy on them."""

from __future__ import annotations

from pathlib import Path


def run(
    out: Path,
    env: str = "metaworld",
    tasks: tuple[str, ...] = (),
    regime: str = "mixed",
    demonstrations: int = 60,
    policy: str = "flow",
    iterations: int = 4000,
    seed: int = 0,
    demos: Path | None = None,
) -> None:
    """Train a policy on demonstrations of a scripted expert, in minutes on one core.

    The same command resumes an interrupted training and ends with the same weights.

    Args:
        out: folder for the policy; temporary files are in its subfolder `work`.
        env: benchmark: metaworld, pusht, pusht-pixels, ogbench or aloha.
        tasks: tasks that one policy learns together; default six of Meta-World, the one of PushT or ALOHA, or the
            five of OGBench's cube-single.
        regime: imperfection of the demonstrations: clean, noisy (noisy, slow), mixed (two modes of aim) or, except
            in PushT, misled (the larger mode aims beside the object).
        demonstrations: number of successful demonstrations of each task.
        policy: flow (a compact flow-matching policy) or diffusion (LeRobot's Diffusion Policy).
        iterations: number of optimiser steps.
        seed: seed of demonstrations, weights and batches.
        demos: folder of demonstrations, to share them between trainings; default `work/demos` in the output folder.
    """
    from rich.console import Console

    from keystone_study.train.config import TrainingConfig
    from keystone_study.train.experts import find_expert
    from keystone_study.train.run import run_training

    console = Console(highlight=False, soft_wrap=True)
    config = TrainingConfig(
        benchmark=env,
        tasks=tasks or find_expert(env).default_tasks,
        regime=regime,
        demonstrations=demonstrations,
        policy=policy,
        iterations=iterations,
        seed=seed,
    )
    try:
        fresh = run_training(config, out, demos)
    except KeyboardInterrupt:
        console.print(f"[bold yellow]interrupted[/]  {out}: the same command again resumes")
        raise SystemExit(130) from None
    console.print(
        f"[bold green]{'ok' if fresh else 'already finished'}[/]  {out}: {config.policy}, {' '.join(config.tasks)}"
    )
