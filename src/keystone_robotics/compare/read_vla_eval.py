"""Reads the results of a vla-eval (0.8) run: `<benchmark>_aggregate.json` in its output folder, one for each benchmark.

``tasks`` is a list of ``{"task", "episodes": [{"episode_id", "metrics": {"success": …}, "elapsed_sec",
"failure_reason"}]}``; the seed of the benchmark's parameters stands at the top if the configuration gave one. There is
no hash of initial states.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from keystone_robotics.compare.files import as_success, as_time, as_whole, read_json, reading
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.errors import KeystoneError
from keystone_robotics.records import EpisodeRecord

PATTERN = "*_aggregate.json"


def is_vla_eval(result: object) -> bool:
    """Whether a JSON document looks like one of vla-eval's.

    >>> is_vla_eval({"benchmark": "LIBERO", "tasks": []}), is_vla_eval({"per_task": []})
    (True, False)
    """
    return isinstance(result, dict) and "benchmark" in result and "tasks" in result


def read_vla_eval(path: Path) -> Outcomes:
    """The arm of a result, named after its folder.

    Raises:
        KeystoneError: if the file is damaged, of another shape, or its episodes have no ``success``.
    """
    result = read_json(path)
    with reading(path, "vla-eval"):
        seed = None if result.get("seed") is None else as_whole(result["seed"], "seed")
        episodes = [episode for task in result["tasks"] for episode in _episodes(task, seed, path)]
        elapsed = [as_time(episode.get("elapsed_sec")) for task in result["tasks"] for episode in task["episodes"]]
        settings = {"benchmark": result["benchmark"], "mode": result.get("mode")}
        partial = bool(result.get("partial"))
    if not episodes:
        raise KeystoneError(f"{path} holds no episode")
    seconds = [value for value in elapsed if value is not None]
    return Outcomes(
        name=path.resolve().parent.name if path.name.endswith(PATTERN[1:]) else path.stem,
        source=str(path),
        tool="vla-eval",
        episodes=tuple(episodes),
        time=("one episode", 1e3 * float(np.median(seconds))) if seconds else None,
        settings=settings,
        notes=(f"{path} is marked as partial: not all of its episodes were rolled out",) if partial else (),
    )


def read_vla_eval_folder(folder: Path) -> Outcomes:
    """The arm of a run with one or several benchmarks (SimplerEnv has one per task).

    Raises:
        KeystoneError: if the results are those of several runs, or two of them have a task of the same name.
    """
    paths = sorted(folder.glob(PATTERN))
    results = [read_vla_eval(path) for path in paths]
    if len(results) == 1:
        return results[0]
    names = ", ".join(path.name for path in paths)
    runs = {_run_of(read_json(path), path) for path in paths}
    if len(runs) > 1:
        raise KeystoneError(f"{folder} holds the results of {len(runs)} runs of vla-eval, give one: {names}")
    tasks = Counter(task for result in results for task in {one.task for one in result.episodes})
    twice = [task for task, number in tasks.items() if number > 1]
    if twice:
        raise KeystoneError(f"{folder}: several results have the task {twice[0]!r}, give one: {names}")
    times = [result.time[1] for result in results if result.time is not None]
    return Outcomes(
        name=folder.resolve().name,
        source=str(folder),
        tool="vla-eval",
        episodes=tuple(episode for result in results for episode in result.episodes),
        time=("one episode", float(np.median(times))) if times else None,
        settings={**results[0].settings, "benchmark": [result.settings["benchmark"] for result in results]},
        notes=tuple(note for result in results for note in result.notes),
    )


def _run_of(result: dict[str, Any], path: Path) -> str:
    """The run that wrote a result: its id is followed by the name of the benchmark."""
    return str(result.get("eval_id", "")).removesuffix("-" + path.name.removesuffix(PATTERN[1:]))


def _episodes(task: dict[str, Any], seed: int | None, path: Path) -> list[EpisodeRecord]:
    numbers = Counter(as_whole(episode["episode_id"], "episode_id") for episode in task["episodes"])
    # tasks of one name are told apart by their index, which vla-eval writes with the episodes that it recorded
    ambiguous = max(numbers.values(), default=1) > 1
    found = []
    for episode in task["episodes"]:
        name = f"{task['task']} #{episode['task_idx']}" if ambiguous else str(task["task"])
        error = str(episode["failure_reason"]) if episode.get("failure_reason") else None
        metrics = episode["metrics"]
        if error is None and "success" not in metrics:
            raise KeystoneError(
                f"{path}, {name}, episode {episode['episode_id']} has no metric 'success', only {', '.join(metrics) or 'none'}"
            )
        found.append(
            EpisodeRecord(
                task=name,
                episode=as_whole(episode["episode_id"], "episode_id"),
                success=error is None
                and as_success(metrics["success"], f"{path}, {name}, episode {episode['episode_id']}"),
                initial_seed=seed,
                error=error,
            )
        )
    return found
