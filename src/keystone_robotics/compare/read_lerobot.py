"""Reads `eval_info.json` of LeRobot's `lerobot-eval`.

LeRobot 0.6 writes ``per_task``: a list of ``{"task_group", "task_id", "metrics": {"successes": [...], ...}}``,
``per_group`` and ``overall``. It computes with seeds but does not write them, and it never writes a hash. What
`eval_policy` returns for a single environment, which earlier versions wrote, is ``per_episode``: a list with
``success`` and ``seed``, and ``aggregated``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keystone_robotics.compare.files import as_success, as_time, as_whole, read_json, reading
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.errors import KeystoneError
from keystone_robotics.records import EpisodeRecord

FILE = "eval_info.json"


def is_lerobot(info: object) -> bool:
    """Whether a JSON document looks like one of LeRobot's.

    >>> is_lerobot({"per_task": [], "overall": {}}), is_lerobot({"tasks": []})
    (True, False)
    """
    return isinstance(info, dict) and ("per_task" in info or "per_episode" in info)


def read_lerobot(path: Path) -> Outcomes:
    """The arm of an `eval_info.json`, named after its folder.

    Raises:
        KeystoneError: if the file is damaged or of another shape.
    """
    info = read_json(path)
    with reading(path, "lerobot-eval"):
        episodes = _tasks(info["per_task"], path) if "per_task" in info else _single(info["per_episode"], path)
        seconds = as_time(info.get("overall", info.get("aggregated", {})).get("eval_ep_s"))
    if not episodes:
        raise KeystoneError(f"{path} holds no episode")
    return Outcomes(
        name=path.resolve().parent.name if path.name == FILE else path.stem,
        source=str(path),
        tool="lerobot",
        episodes=tuple(episodes),
        time=None if seconds is None else ("one episode", 1e3 * seconds),
    )


def _tasks(tasks: list[dict[str, Any]], path: Path) -> list[EpisodeRecord]:
    return [
        EpisodeRecord(task=name, episode=number, success=as_success(success, f"{path}, {name}, episode {number}"))
        for task in tasks
        for name in [f"{task['task_group']}/{task['task_id']}"]
        for number, success in enumerate(task["metrics"]["successes"])
    ]


def _single(episodes: list[dict[str, Any]], path: Path) -> list[EpisodeRecord]:
    return [
        EpisodeRecord(
            task="all",
            episode=as_whole(episode["episode_ix"], "episode_ix"),
            success=as_success(episode["success"], f"{path}, episode {episode['episode_ix']}"),
            initial_seed=None if episode["seed"] is None else as_whole(episode["seed"], "seed"),
        )
        for episode in episodes
    ]
