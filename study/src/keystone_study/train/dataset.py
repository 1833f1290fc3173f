"""Demonstrations as a LeRobotDataset, written by LeRobot's own writer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keystone_robotics.environments.benchmark import Array
from keystone_robotics.errors import KeystoneError
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.expert import Expert
from keystone_study.train.progress import ProgressCallback, no_progress


def write_dataset(
    demonstrations: Sequence[tuple[str, Demonstration]],
    expert: Expert,
    folder: Path,
    report: ProgressCallback = no_progress,
) -> None:
    """Write demonstrations of tasks, one episode each, with the names that LeRobot gives its environments' observations.

    Args:
        demonstrations: task and demonstration.
        expert: who made them.
        folder: is created.
        report: is told the number of episodes written.

    Raises:
        KeystoneError: if the folder exists, or LeRobot is missing.
    """
    try:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError as error:
        raise KeystoneError(
            f"a LeRobotDataset is written by LeRobot ({error}): pip install 'keystone-robotics[lerobot]'"
        ) from error
    if folder.exists():
        raise KeystoneError(f"--out {folder} exists: choose the name of a new folder")
    task, first = demonstrations[0]
    env = expert.benchmark.make(task)
    fps = int(env.metadata["render_fps"])
    env.close()
    dataset = LeRobotDataset.create(
        f"keystone/{expert.benchmark.name}",
        fps,
        {name: _feature(rows) for name, rows in _columns(first, expert).items()},
        root=folder,
        use_videos=False,
    )
    for number, (task, demonstration) in enumerate(demonstrations):
        report(number, f"{number} episodes")
        columns = _columns(demonstration, expert)
        for step in range(len(demonstration.actions)):
            dataset.add_frame({**{name: rows[step] for name, rows in columns.items()}, "task": task})
        dataset.save_episode()
    dataset.finalize()
    report(len(demonstrations), f"{dataset.meta.total_frames} frames")


def _columns(demonstration: Demonstration, expert: Expert) -> dict[str, Array]:
    """(L, …) rows of each feature."""
    return {
        "observation.state": demonstration.agent_pos,
        "observation.environment_state": demonstration.environment_state[:, expert.repeated :],
        "action": demonstration.actions,
    }


def _feature(rows: Array) -> dict[str, object]:
    return {"dtype": "float32", "shape": rows.shape[1:], "names": None}
