"""``keystone report``: a page of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from keystone_robotics.cli.flags import Arms, flat
from keystone_robotics.compare.outcomes import Mode


def run(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    out: Path = Path("report.html"),
    arms: Arms = (),
    paired: Mode = "auto",
    alarm: Path | None = None,
    films: int = 0,
) -> None:
    """Write one self-contained HTML page of runs: is it better, how sure, what does it cost; tasks, episodes, rounds.

    The page needs no network. Rounds are in it if the run was made with `keystone eval --keep-rounds`.

    Args:
        runs: folders of `keystone eval` or `keystone tune`, LeRobot's eval_info.json, vla-eval's …_aggregate.json; all arms
            are compared with the first arm of the first.
        out: the file to write.
        arms: only these arms, the one to compare with first; default all, in the runs' order.
        paired: as in `keystone compare`; trust pairs results of LeRobot and vla-eval by episode number.
        alarm: file of `keystone monitor calibrate`, whose score is then shown with the rounds.
        films: episodes with kept rounds to show as films, changed ones first; they are replayed in the run's environment.
    """
    from rich.console import Console

    from keystone_robotics.report.page.read import read_runs

    found = read_runs(runs, flat(arms))  # what cannot be read is said before torch is imported
    from keystone_robotics.report.page.data import page_data
    from keystone_robotics.report.page.write import write_page

    calibration = None
    if alarm is not None:
        from keystone_robotics.monitor.calibration import Calibration

        calibration = Calibration.load(alarm)
    data = page_data(found, paired, alarm=calibration, films=films)
    size = write_page(out, data)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(data["headline"], style="bold")
    rounds = data["stored"]
    kept = (
        f"rounds of {rounds['shown']} of {rounds['episodes']} episodes"
        if rounds["episodes"]
        else "no rounds: keep them with `keystone eval --keep-rounds`"
    )
    shown = f", {len(data['films'])} films" if films else ""
    console.print(f"wrote {out}: {size / 1e6:.1f} MB, {len(data['episodes']['arm'])} episodes, {kept}{shown}")
    for note in data["notes"] if films else ():
        console.print(f"note: {note}", style="bold yellow")
