"""``keystone demonstrations``: a scripted expert's demonstrations as a LeRobotDataset."""

from __future__ import annotations

from pathlib import Path


def run(
    out: Path,
    env: str = "pusht",
    tasks: tuple[str, ...] = (),
    regime: str = "mixed",
    demonstrations: int = 60,
    seed: int = 0,
    demos: Path | None = None,
) -> None:
    """Write demonstrations of a scripted expert as a LeRobotDataset, for `lerobot-train`.

    Features are named as LeRobot's environments name them: observation.state, observation.environment_state, action.

    Args:
        out: folder for the dataset; must not exist.
        env: benchmark with states: metaworld, pusht, ogbench or aloha.
        tasks: tasks to demonstrate; default as in `keystone train`.
        regime: imperfection of the demonstrations, as in `keystone train`.
        demonstrations: number of successful demonstrations of each task.
        seed: seed of the demonstrations.
        demos: folder of demonstrations, to share them with `keystone train` and to resume; default `OUT-demos`.
    """
    import os

    from rich.console import Console

    from keystone_study.train.config import TrainingConfig
    from keystone_study.train.dataset import write_dataset
    from keystone_study.train.experts import find_expert
    from keystone_study.train.progress import progress_bar
    from keystone_study.train.run import collect_demonstrations

    expert = find_expert(env)
    config = TrainingConfig(env, tasks or expert.default_tasks, regime, demonstrations, "diffusion", 1, seed)
    # LeRobot's writer shows one for each episode.
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    found = collect_demonstrations(config, demos or out.with_name(f"{out.name}-demos"), progress_bar)
    episodes = [(task, one) for task, collection in found.items() for one in collection.demonstrations]
    with progress_bar(f"writing {out}", len(episodes)) as report:
        write_dataset(episodes, expert, out, report)
    Console(highlight=False, soft_wrap=True).print(f"[bold green]ok[/]  {out}: {len(episodes)} episodes")
