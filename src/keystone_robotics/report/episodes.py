"""Stored episodes as Rerun recordings: ``keystone view``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.evaluate.replay import Replay, replay_episode
from keystone_robotics.monitor.calibration import Calibration
from keystone_robotics.records import EpisodeRecord, RoundRecord, Store
from keystone_robotics.report.alarms import alarm_series
from keystone_robotics.view.live import about
from keystone_robotics.view.picture import Floats, Lanes, PathFn, Picture, draw
from keystone_robotics.view.recording import Recording

EVERY = 2  #: environment steps between two images


@dataclass(frozen=True)
class StoredEpisode:
    """An episode with its rounds."""

    run: Path
    record: EpisodeRecord
    rounds: tuple[RoundRecord, ...]

    @property
    def file_name(self) -> str:
        """As LeRobot names recordings, with the arm: ``push-v3_keystone-k-16_episode_3.rrd``."""
        repeat = f"_repeat_{self.record.repeat}" if self.record.repeat else ""
        parts = (self.record.task, self.record.arm)
        return f"{'_'.join(_slug(part) for part in parts)}{repeat}_episode_{self.record.episode}.rrd"


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:60] or "unnamed"


def find_episodes(
    run: Path, numbers: Sequence[int] = (), task: str | None = None, arm: str | None = None, repeat: int = 0
) -> list[StoredEpisode]:
    """Stored episodes with kept rounds.

    Args:
        run: folder of a ``keystone eval --keep-rounds``.
        numbers: of the episodes; default the first that some arms solve and others do not, else the first.
        task: default the only one, or that of the default episode.
        arm: default the one with the most candidates.
        repeat: of the episodes.

    Raises:
        KeystoneError: if there is no such episode, or it has no rounds.
    """
    with Store(run) as store:
        stored = store.episodes()
        if not stored:
            raise KeystoneError(f"{run} holds no episode yet: wait for the first shard")
        if arm is not None:
            _choose("arm", arm, sorted({one.arm for one in stored}), run)
        if task is not None or numbers:
            task = _choose("task", task, sorted({one.task for one in stored}), run)
        if not numbers:
            task, number = _default_episode([one for one in stored if task in (None, one.task)], repeat)
            numbers = (number,)
        found = []
        for number in numbers:
            same = [one for one in stored if (one.task, one.repeat, one.episode) == (task, repeat, number)]
            if arm is not None:
                same = [one for one in same if one.arm == arm]
            if not same:
                known = sorted({one.episode for one in stored if (one.task, one.repeat) == (task, repeat)})
                raise KeystoneError(f"{run} has no episode {number} of {task}: {_range(known)}")
            with_rounds = [StoredEpisode(run, one, tuple(store.rounds(one.key))) for one in same]
            with_rounds = [one for one in with_rounds if one.rounds and one.rounds[0].candidates.size]
            if not with_rounds:
                raise KeystoneError(
                    f"{run} holds no rounds of episode {number} of {task}: keep them with `keystone eval --keep-rounds`"
                )
            found.append(max(with_rounds, key=lambda one: len(one.rounds[0].candidates)))
    return found


def _choose(what: str, given: str | None, known: Sequence[str], run: Path) -> str:
    if given is None:
        if len(known) > 1:
            raise KeystoneError(f"{run} has several {what}s, choose one: --{what} {f' | --{what} '.join(known)}")
        return known[0]
    if given not in known:
        raise KeystoneError(f"{run} has no {what} {given!r}: {nearest_name(given, known)}")
    return given


def _default_episode(stored: Sequence[EpisodeRecord], repeat: int) -> tuple[str, int]:
    """Task and number of the first episode whose outcome depends on the arm, else of the first."""
    outcomes: dict[tuple[str, int], set[bool]] = {}
    for one in stored:
        if one.repeat == repeat:
            outcomes.setdefault((one.task, one.episode), set()).add(one.success)
    first = next(iter(outcomes), (stored[0].task, 0))
    return next((key for key, seen in outcomes.items() if len(seen) > 1), first)


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return "there is none of this repeat"
    return f"expected {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"there is only {numbers[0]}"


@dataclass
class Robot:
    """The environment and the policy of a run, where they are installed: for positions and images.

    Attributes:
        benchmark: None if it cannot be made.
        agent: None if it cannot be loaded.
        notes: why, for the reader.
    """

    benchmark: Any = None
    agent: Any = None
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(run: Path) -> Robot:
        """As the settings beside a run name them. Nothing of it is required: what fails becomes a note."""
        from keystone_robotics.environments import find_benchmark
        from keystone_robotics.policies import load_agent

        try:
            settings = json.loads((run / "settings.json").read_text())
            policy, env = settings["policy"], settings["env"]
        except (OSError, ValueError, KeyError, TypeError):
            return Robot(notes=(f"{run / 'settings.json'} names no policy and environment: nothing is replayed",))
        found = Robot()
        try:
            found.benchmark = find_benchmark(env, settings.get("max_steps"))
            found.agent = load_agent(policy, settings.get("device"))
        except Exception as error:  # other people's packages; a picture without them is still one
            found.notes = (_one_line(f"{env if found.benchmark is None else policy} cannot be loaded", error),)
        return found


def _one_line(what: str, error: BaseException) -> str:
    return f"{what}: {' '.join(str(error).split())[:300]}"


def record_episode(
    episode: StoredEpisode,
    out: Path,
    robot: Robot,
    *,
    images: bool = True,
    path: PathFn | None = None,
    alarm: Calibration | None = None,
) -> list[str]:
    """Write the recording of an episode; returns notes for the reader.

    Args:
        episode: with its rounds.
        out: file to write.
        robot: whose environment is replayed for positions and images.
        images: with camera images.
        path: maps candidates, as the policy's sampler returned them, to positions, instead of the environment.
        alarm: whose score is shown.
    """
    notes = list(robot.notes)
    replay: Replay | None = None
    if robot.benchmark is not None:
        try:
            replay = replay_episode(robot.benchmark, episode.record, episode.rounds, EVERY if images else 0)
            notes += replay.notes
        except Exception as error:  # simulators fail in many ways
            notes.append(_one_line("the episode cannot be replayed", error))
    drawn = (
        [_Drawn(_real(one), path) for one in episode.rounds] if path else _in_environment(robot, replay, episode.rounds)
    )
    by_dimension = drawn is None
    drawn = drawn or [_Drawn(_real(one), None) for one in episode.rounds]
    if by_dimension:
        notes.append("candidates are drawn by dimension, in the policy's units")
    known = all(one.executed is not None or not stored.synthesised for one, stored in zip(drawn, episode.rounds))
    lanes = Lanes.around([one.chunks for one in drawn], 0.05)
    limits = [None] * len(drawn) if alarm is None else alarm_series(alarm, episode.rounds)
    seconds = None if replay is None else replay.seconds
    recording = Recording(
        lambda stream, shown: stream.save(out, default_blueprint=shown), out.stem, _about(episode, by_dimension, known, notes),
        lanes if by_dimension else None, camera=bool(replay and replay.frames),
    )  # fmt: skip
    for one, shown, limit in zip(episode.rounds, drawn, limits, strict=True):
        recording.add(
            Picture(
                number=one.number,
                frame=one.step,
                seconds=None if seconds is None else one.step * seconds,
                actions=one.actions,
                consensus=one.consensus,
                dispersion=np.nan if one.dispersion is None else one.dispersion,
                alarm=limit,
                **draw(shown.chunks, one.labels, one.index, shown.executed, shown.path, lanes),
            )
        )
    recording.flush()
    for step, image in replay.frames if replay else ():
        recording.add_image(step, None if seconds is None else step * seconds, image)
    recording.close()
    return notes


@dataclass(frozen=True)
class _Drawn:
    """The chunks of a round, how they become positions, and the executed one if it is none of them."""

    chunks: Floats
    path: PathFn | None
    executed: Floats | None = None


def _real(record: RoundRecord) -> Floats:
    """(K, T, D) the candidates without padding, from the first executed step on."""
    window = record.window
    return record.candidates if window is None else record.candidates[:, window.start :, : window.dims]


def _in_environment(robot: Robot, replay: Replay | None, rounds: Sequence[RoundRecord]) -> list[_Drawn] | None:
    """Chunks in the environment's units, if it knows where they drive the tool; else None."""
    if robot.agent is None or replay is None:
        return None
    found = []
    for record, observation in zip(rounds, replay.observations, strict=True):
        chunks = robot.agent.in_env_units(_real(record), observation)
        path = partial(robot.benchmark.tool_path, observation=observation)
        if chunks is None or path(chunks) is None:
            return None
        found.append(_Drawn(chunks, path, record.actions if record.synthesised else None))
    return found


def _about(episode: StoredEpisode, by_dimension: bool, known: bool, notes: Sequence[str]) -> str:
    record = episode.record
    outcome = "error" if record.error else "success" if record.success else "failure"
    title = f"# {record.task}, episode {record.episode}: {outcome}\n\n{record.arm} in {episode.run.name}\n\n"
    # An averaged chunk is stored only as the actions that the environment took, in its units.
    chosen = "what is executed" if known else "the candidate nearest to what is executed, which was averaged"
    return (
        title
        + about(len(episode.rounds[0].candidates), by_dimension, chosen)
        + "".join(f"\n\n*{note}*" for note in notes)
    )
