"""``keystone monitor``: calibrate an alarm on a stored run, and see how well scores and alarms do."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.extras import SubcommandApp

from keystone_robotics.cli.flags import OneArm
from keystone_robotics.errors import KeystoneError
from keystone_robotics.records import check_run

if TYPE_CHECKING:
    from rich.console import Console

    from keystone_robotics.monitor import RunScores
    from keystone_robotics.monitor.scores import Score

Run = Annotated[Path, tyro.conf.Positional]

run = SubcommandApp()
run.__doc__ = "Alarms from the disagreement of candidates."


@run.command
def calibrate(
    run: Run,
    score: str | None = None,
    false_alarms: float = 0.05,
    window: int = 3,
    kind: Literal["constant", "band"] = "constant",
    arm: OneArm = None,
    out: Path = Path("alarm.json"),
    force: bool = False,
) -> None:
    """Calibrate an alarm on the successful episodes of a run: `keystone.Alarm.load("alarm.json")`.

    If the run has failures, the score is tested on them in both directions, and no alarm is written if it does not tell them
    from successes. docs/monitor.md says what an alarm is not.

    Args:
        run: folder of a `keystone eval --keep-rounds`.
        score: which score (default overlap-distance); `keystone monitor scores RUN` compares them.
        false_alarms: share of the successful episodes in which it may ring; 0.05 needs 19 successes, 0.1 needs 9.
        window: rounds that the score is averaged over.
        kind: constant: one limit; band: one for each round of an episode, which needs twice as many successes.
        arm: of the run; default the only one with more than one candidate.
        out: file to write.
        force: write the alarm even if the score does not tell failures from successes.
    """
    check_run(run)
    from keystone_robotics.monitor import calibrate as make
    from keystone_robotics.monitor.scores import DEFAULT_SCORE, SCORES, find_score

    console = _console()
    score = score or DEFAULT_SCORE
    find_score(score)
    found = make(_read(run, arm, list(SCORES.values())), score, false_alarms, window, kind, force)
    found.save(out)
    alarming = ">" if found.direction == "high" else "<"
    limits = f"{found.limit[0]:.3g}" + ("" if found.kind == "constant" else f" … {found.limit[-1]:.3g}")
    console.print(
        f"{score} {alarming} {limits} (mean of {window} rounds) rings in at most {100 * false_alarms:g} % of the episodes that "
        f"would succeed, if they are like the {found.n} successes of {run}"
    )
    if found.auroc is None:
        console.print(
            f"{found.failures or 'no'} failures in the run: whether the score foretells any is untested",
            style="bold yellow",
        )
    else:
        value, low, high = found.auroc
        console.print(f"AUROC within task on its {found.failures} failures: {value:.2f} [{low:.2f}, {high:.2f}]")
        if low <= 0.5:
            console.print("written with --force: the score does not tell failures from successes", style="bold yellow")
    console.print(f"wrote {out}")


@run.command
def evaluate(
    run: Run,
    alarm: tuple[Path, ...] = (Path("alarm.json"),),
    arm: OneArm = None,
    json_path: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """How alarms do on the episodes of a run; give another run than that of the calibration.

    Args:
        run: folder of a `keystone eval --keep-rounds`.
        alarm: files of `keystone monitor calibrate`.
        arm: of the run; default that of the calibration, if the run has it.
        json_path: write all numbers to this file.
    """
    check_run(run)
    from keystone_robotics.monitor import Calibration, detect
    from keystone_robotics.monitor.calibration import too_few
    from keystone_robotics.monitor.scores import SCORES
    from keystone_robotics.monitor.table import LEGEND, rows
    from keystone_robotics.tables import as_text

    console = _console()
    if not alarm:
        raise KeystoneError("no alarm was given: --alarm alarm.json")
    calibrations = [Calibration.load(path) for path in alarm]
    read = _read(run, arm, [SCORES[one.score] for one in calibrations], calibrations[0].spec)
    for path, one in zip(alarm, calibrations, strict=True):
        for note in _notes(one, read):
            console.print(f"note: {path}: {note}", style="bold yellow")
    found = [detect(read, one) for one in calibrations]
    console.print(f"{read.arm} in {run}: {found[0].successes} successes, {found[0].failures} failures{_errors(read)}\n")
    console.print(as_text(rows(found)))
    caution = too_few(read)
    if caution:
        console.print(f"\n{caution} how alarms do: roll out more episodes", style="bold yellow")
    console.print("\n" + LEGEND)
    _write(
        json_path,
        {"run": read.source, "arm": read.arm, "caution": caution, "alarms": [asdict(one) for one in found]},
    )


@run.command
def scores(
    run: Run,
    window: int = 3,
    arm: OneArm = None,
    json_path: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """How well each score tells the failures of a run from its successes.

    Args:
        run: folder of a `keystone eval --keep-rounds`.
        window: rounds that scores are averaged over.
        arm: of the run; default the only one with more than one candidate.
        json_path: write all numbers to this file.
    """
    check_run(run)
    from keystone_robotics.monitor.calibration import find_direction, too_few
    from keystone_robotics.monitor.scores import SCORES
    from keystone_robotics.monitor.separation import auroc
    from keystone_robotics.monitor.table import score_rows
    from keystone_robotics.tables import as_text

    console = _console()
    read = _read(run, arm, list(SCORES.values()))
    if not read.failures() or not read.successes():
        raise KeystoneError(
            f"{run}: {len(read.successes())} successes and {len(read.failures())} failures; both are needed to compare scores"
        )
    needed = {name: score.min_candidates for name, score in SCORES.items() if 0 < read.k < score.min_candidates}
    found = {}
    for name in [one for one in SCORES if one not in needed]:
        direction, estimate = find_direction(read, name, window)
        sign = 1 if direction == "high" else -1
        found[name] = (direction, estimate, auroc(read.series(name, sign, window), whole=True))
    console.print(
        f"{read.arm} in {run}: {len(read.successes())} successes, {len(read.failures())} failures{_errors(read)}\n"
    )
    caution = too_few(read)
    console.print(as_text(score_rows(found, caution, needed)))
    if caution:
        console.print(
            f"\n{caution} which score tells failures from successes: roll out more episodes", style="bold yellow"
        )
    elif not any(estimate.separates for _, estimate, _ in found.values()):
        console.print("\nno score tells failures from successes of the same task here", style="bold yellow")
    entries = {
        name: {"direction": direction, "auroc": estimate, "auroc_whole": whole}
        for name, (direction, estimate, whole) in found.items()
    }
    _write(json_path, {"run": read.source, "arm": read.arm, "window": window, "caution": caution, "scores": entries})


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=True)


def _read(run: Path, arm: str | None, scores: list[Score], prefer: str = "") -> RunScores:
    from rich.console import Console
    from rich.progress import Progress

    from keystone_robotics.monitor import read_run

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("scoring rounds", total=None)
        return read_run(run, arm, scores, lambda done, total: bar.update(task, completed=done, total=total), prefer)


def _notes(calibration: Any, read: RunScores) -> list[str]:
    """Why an alarm may not be meant for a run."""
    found = []
    if calibration.fingerprint and read.fingerprint != calibration.fingerprint:
        found.append(f"calibrated for another policy ({calibration.policy})")
    if calibration.spec and read.arm != calibration.spec:
        found.append(f"calibrated for {calibration.spec}, the run has {read.arm}")
    executed = calibration.execute, read.execute
    if None not in executed and len(set(executed)) > 1 and "execute=" not in read.arm:  # which would be in both Specs
        found.append("calibrated with {} executed steps of a chunk, the run has {}".format(*executed))
    if (calibration.env, calibration.seed) == (read.env, read.seed) and calibration.fingerprint == read.fingerprint:
        found.append("calibrated on initial states of the same seed: its false alarms are not those of fresh states")
    other = sorted(set(read.tasks) - set(calibration.tasks))
    if calibration.tasks and other:
        found.append(f"not calibrated on {', '.join(other)}")
    return found


def _errors(read: RunScores) -> str:
    return f", {read.errors} errors left out" if read.errors else ""


def _write(path: Path | None, found: dict[str, Any]) -> None:
    if path is None:
        return
    from keystone_robotics.files import write_file

    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(_finite(found), indent=1) + "\n")


def _finite(value: Any) -> Any:
    """With null instead of nan, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value != value else value
