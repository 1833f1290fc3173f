"""``keystone view``: stored episodes in Rerun's viewer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from keystone_robotics.cli.flags import OneArm
from keystone_robotics.errors import KeystoneError


def run(
    run: Annotated[Path, tyro.conf.Positional],
    episode: tuple[int, ...] = (),
    task: str | None = None,
    arm: OneArm = None,
    repeat: int = 0,
    out: Path | None = None,
    headless: bool = False,
    images: bool = True,
    replay: bool = True,
    path: str | None = None,
    alarm: Path | None = None,
) -> None:
    """Write episodes of a run as Rerun recordings (.rrd), and open the viewer.

    Candidates are paths of the tool where the environment knows how actions move it, else one lane for each dimension;
    their colour is their cluster, what was executed is thick and yellow.

    Args:
        run: folder of a `keystone eval --keep-rounds`.
        episode: numbers of the episodes; default the first that some arms solve and others do not.
        task: of the episodes; default the run's only one, or that of the default episode.
        arm: of the episodes; default the one with the most candidates.
        repeat: of the episodes.
        out: a file .rrd for one episode, else a folder; default RUN/rerun.
        headless: only write.
        images: with camera images, as far as the environment can be drawn.
        replay: execute the stored actions again, for positions and images; needs the run's environment and policy.
        path: package.module:function that maps candidates (K, T, D), as the policy's sampler returned them, to positions
            (K, T, 2 or 3), instead of the environment.
        alarm: file of `keystone monitor calibrate`, whose score is then shown.
    """
    from keystone_robotics.records import check_run

    check_run(run)
    from rich.console import Console

    from keystone_robotics.view.sdk import import_rerun

    import_rerun()  # before anything else takes time
    from keystone_robotics.monitor.calibration import Calibration
    from keystone_robotics.named import load_function
    from keystone_robotics.report.episodes import Robot, find_episodes, record_episode

    console = Console(highlight=False, markup=False, soft_wrap=True)
    found = find_episodes(run, episode, task, arm, repeat)
    files = _files(out or run / "rerun", [one.file_name for one in found])
    if out is None:
        _refuse_links(files)
    calibration = None if alarm is None else Calibration.load(alarm)
    function = None if path is None else load_function(path)
    robot = Robot.of(run) if replay else Robot()
    for one, file in zip(found, files, strict=True):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KeystoneError(f"cannot write {file}: {error.strerror}") from None
        for note in record_episode(one, file, robot, images=images, path=function, alarm=calibration):
            console.print(f"note: {note}", style="bold yellow")
        console.print(f"wrote {file}: {file.stat().st_size / 1e3:.0f} kB, {len(one.rounds)} rounds of {one.record.arm}")
    if not headless:
        _open(files, console.print)


def _files(out: Path, names: Sequence[str]) -> list[Path]:
    if out.suffix != ".rrd":
        return [out / name for name in names]
    if len(names) > 1:
        raise KeystoneError(f"--out {out} is one file, and there are {len(names)} episodes: expected a folder")
    return [out]


def _refuse_links(files: Sequence[Path]) -> None:
    """A run from somebody else may have links in it: a recording would replace what they point to."""
    for path in (files[0].parent, *files):
        if path.is_symlink():
            raise KeystoneError(f"{path} is a link to {path.readlink()}: remove it, or say where to write with --out")


def _open(files: Sequence[Path], say: object) -> None:
    """Start the viewer, which outlives this command; where there is no display, say how instead."""
    import subprocess

    assert callable(say)
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        say(f"there is no display here: open it where there is one, with `rerun {files[0]}`")
        return
    subprocess.Popen(  # noqa: S603 (the viewer, on files that were just written)
        [sys.executable, "-m", "rerun", *map(str, files)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
