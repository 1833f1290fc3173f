"""The command `keystone train`: demonstrations from a scripted expert made human, and a small policy that learns from them."""

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
    """Train a policy on demonstrations, in minutes, on one core.

    Interrupted, the same command goes on where it stopped, and ends with the same weights.

    Args:
        out: folder for the policy; what is needed until it is finished goes to `work` in it.
        env: benchmark, metaworld or pusht.
        tasks: that one policy learns together; default six of Meta-World, or PushT's one.
        regime: how the expert demonstrates: clean, noisy (unsteady, slow), mixed (of two minds where to aim) or, in Meta-World,
            misled (mostly aiming beside the object).
        demonstrations: of each task; only successful ones count.
        policy: flow (a compact flow-matching policy) or diffusion (LeRobot's Diffusion Policy).
        iterations: of the optimiser.
        seed: of demonstrations, weights and batches.
        demos: folder of demonstrations, to share them between trainings; default `work/demos` in the folder.
    """
    from rich.console import Console

    from keystone_study.train.experts import find_expert
    from keystone_study.train.plan import Plan
    from keystone_study.train.run import run_training

    console = Console(highlight=False, soft_wrap=True)
    plan = Plan(
        benchmark=env,
        tasks=tasks or find_expert(env).default_tasks,
        regime=regime,
        demonstrations=demonstrations,
        policy=policy,
        iterations=iterations,
        seed=seed,
    )
    try:
        fresh = run_training(plan, out, demos)
    except KeyboardInterrupt:
        console.print(f"[bold yellow]stopped[/]  {out}: run the same command again to go on from here")
        raise SystemExit(130) from None
    console.print(
        f"[bold green]{'ok' if fresh else 'finished already'}[/]  {out}: {plan.policy}, {' '.join(plan.tasks)}"
    )
