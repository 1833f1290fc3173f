"""Alarms on the workloads: calibrated on some initial states, tried on others."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.files import write_file
from keystone_robotics.monitor import SCORES, Detection, RunScores, calibrate, detect, read_run
from keystone_robotics.monitor.calibration import Kind, find_direction
from keystone_robotics.monitor.conformal import WINDOW
from keystone_robotics.monitor.run import EpisodeScores
from keystone_robotics.monitor.separation import Estimate, Series, auroc, auroc_difference
from keystone_robotics.policies.load import trained_on
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.spec import Spec
from keystone_study.reproduce.state_scores import STATE_SCORES, add_state_scores
from keystone_study.reproduce.workloads import Workload

#: Seeds of the initial states and noise on which alarms are calibrated, and of those on which they are tried.
SEEDS = {"calibration": 20, "test": 21}
FALSE_ALARMS = 0.05
#: The first candidate is executed, so that episodes are the policy's own and the same for all K.
WATCHED, MANY = "first:k=16", "first:k=256"
EXECUTED = "core-mean:k=16"  #: the arm whose selection is executed
#: The arms, and the scores that are computed from their candidates. STAC's authors draw 256.
ARMS: dict[str, tuple[str, ...]] = {WATCHED: tuple(SCORES), MANY: ("stac",), EXECUTED: tuple(SCORES)}
STATES = 20  #: initial states of each task, for calibration and for the test


@dataclass(frozen=True)
class AlarmRow:
    """One score on one workload.

    Attributes:
        arm: whose candidates it is computed from.
        score: its name.
        direction: "high", unless low values told failures better on the states of the calibration.
        calibrated: AUROC there.
        tested: AUROC on the states of the test, in that direction.
        to_stac: the same minus that of STAC at K = 256 on the same episodes; None where episodes differ.
        constant: the alarm with one limit, on the states of the test; None if there were too few successes.
        band: the alarm with a limit for each round, likewise.
    """

    arm: str
    score: str
    direction: str
    calibrated: Estimate
    tested: Estimate
    to_stac: Estimate | None
    constant: Detection | None
    band: Detection | None


@dataclass(frozen=True)
class AlarmResult:
    """One workload; ``successes`` are those of `WATCHED` in each half."""

    name: str
    title: str
    tasks: tuple[str, ...]
    successes: dict[str, int]
    rows: tuple[AlarmRow, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> AlarmResult:
        """From what `as_dict` made; null is nan."""
        rows = tuple(AlarmRow(**{name: _from_json(value) for name, value in row.items()}) for row in stored["rows"])
        return cls(**{**stored, "tasks": tuple(stored["tasks"]), "rows": rows})


def _from_json(value: Any) -> Any:
    """Lists are estimates, objects are detections."""
    if isinstance(value, list):
        return Estimate(*(math.nan if one is None else one for one in value))
    if isinstance(value, dict):
        return Detection(**{name: _from_json(one) for name, one in value.items()})
    return value


def settings_for(workload: Workload, split: str, quick: bool) -> EvaluationConfig:
    """The evaluation of one half, without arms."""
    states = (
        workload.states if quick else STATES * (5 if len(workload.tasks or trained_on(workload.policy)) == 1 else 1)
    )
    return EvaluationConfig(
        policy=workload.policy,
        env=workload.env,
        tasks=workload.tasks or trained_on(workload.policy),
        episodes=states,
        seed=SEEDS[split],
        shard=min(10, states),
        keep_rounds=True,
        latency=False,
        allow_untrained_tasks=True,
    )


def run_alarms(workload: Workload, folder: Path, executor: Executor, console: Console, quick: bool) -> AlarmResult:
    """Roll out what is missing, score the rounds once, calibrate and try. Everything is stored in ``folder``."""
    runs: dict[tuple[str, str], RunScores] = {}
    for split in SEEDS:
        settings = settings_for(workload, split, quick)
        for arm, names in ARMS.items():
            place = folder / split / re.sub(r"\W+", "-", arm)
            runs[split, arm] = _scored(replace(settings, arms=(Spec.parse(arm),)), place, names, executor, console)
    for split in SEEDS:
        settings = settings_for(workload, split, quick)
        place = folder / split / re.sub(r"\W+", "-", WATCHED)
        runs[split, f"{WATCHED}, states"] = add_state_scores(settings, runs[split, WATCHED], place, folder)
    rows = [
        _row(runs, arm, score, 0.25 if quick else FALSE_ALARMS)
        for arm, names in {**ARMS, f"{WATCHED}, states": tuple(STATE_SCORES)}.items()
        for score in names
    ]
    successes = {split: len(runs[split, WATCHED].successes()) for split in SEEDS}
    return AlarmResult(workload.name, workload.title, runs["test", WATCHED].tasks, successes, tuple(rows))


def _row(runs: dict[tuple[str, str], RunScores], arm: str, score: str, false_alarms: float) -> AlarmRow:
    calibration, test = runs["calibration", arm], runs["test", arm]
    direction, calibrated = find_direction(calibration, score)
    own = test.series(score, 1 if direction == "high" else -1, WINDOW)
    reference = runs["test", MANY].series("stac", 1, WINDOW)
    same = [_outcome(one) for one in own] == [_outcome(one) for one in reference]
    return AlarmRow(
        arm,
        score,
        direction,
        calibrated,
        auroc(own),
        auroc_difference(own, reference) if same else None,
        _tried(calibration, test, score, false_alarms, "constant"),
        _tried(calibration, test, score, false_alarms, "band"),
    )


def _outcome(one: Series) -> tuple[str, int, bool]:
    return one.task, one.state, one.success


def _tried(calibration: RunScores, test: RunScores, score: str, false_alarms: float, kind: Kind) -> Detection | None:
    """An alarm on the states of the test; None if there were too few successes to calibrate it."""
    try:
        # The table shows all scores, whether or not they separate: that is what it is for.
        return detect(test, calibrate(calibration, score, false_alarms, WINDOW, kind, force=True))
    except KeystoneError:
        return None


def _scored(
    settings: EvaluationConfig, place: Path, names: Sequence[str], executor: Executor, console: Console
) -> RunScores:
    """The scores of a run, from a file if it was scored before."""
    path = place / "scores.json"
    wanted = {"tasks": list(settings.tasks), "episodes": settings.episodes, "scores": list(names)}
    if path.exists():
        stored = json.loads(path.read_text())
        if stored["wanted"] == wanted:
            return _read(stored["run"])
    evaluate(settings, place, executor, console)
    found = read_run(place, str(settings.arms[0]), [SCORES[name] for name in names])
    write_file(path, json.dumps({"wanted": wanted, "run": _write(found)}) + "\n")
    return found


def _write(run: RunScores) -> dict[str, Any]:
    values = {name: value for name, value in vars(run).items() if name != "episodes"}
    episodes = [
        {
            "task": one.record.task, "repeat": one.record.repeat, "episode": one.record.episode,
            "success": one.record.success, "rounds": one.record.rounds, "arm": one.record.arm,
            "scores": {name: [None if np.isnan(value) else value for value in scores] for name, scores in one.scores.items()},
        }
        for one in run.episodes
    ]  # fmt: skip
    return {**values, "episodes": episodes}


def _read(stored: dict[str, Any]) -> RunScores:
    episodes = []
    for entry in stored.pop("episodes"):
        scores = {name: np.array(values, np.float64) for name, values in entry.pop("scores").items()}
        episodes.append(EpisodeScores(EpisodeRecord(**entry), scores))
    return RunScores(**stored, episodes=tuple(episodes))
