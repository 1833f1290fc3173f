"""``keystone compare``: compare two arms or two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import tyro

from keystone_robotics.cli.flags import Arms, flat
from keystone_robotics.compare.outcomes import Mode
from keystone_robotics.errors import KeystoneError


def run(
    a: Annotated[Path, tyro.conf.Positional],
    b: Annotated[Path | None, tyro.conf.Positional] = None,
    arms: Arms = (),
    tasks: tuple[str, ...] = (),
    paired: Mode = "auto",
    json_path: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    fail_on_regression: bool = False,
) -> None:
    """Test whether B is better than A, for results of `keystone eval`, lerobot-eval and vla-eval.

    Prints success rates, the difference with its interval, an exact test, a sequential test and a one-line verdict. Exit code
    0; 1 with --fail-on-regression if B is worse or one of both has only errors; 2 if the results cannot be compared.

    Args:
        a: folder of a `keystone eval`, LeRobot's eval_info.json, or vla-eval's …_aggregate.json.
        b: the result to compare with A; if omitted, the arms of the run A are compared with each other.
        arms: with one run, A's arm followed by the arms to compare with it (default all, in the run's order); with two runs,
            A's arm and B's, or one name for both.
        tasks: compare only these tasks.
        paired: auto pairs episodes whose initial states have equal hashes; require makes it an error if they differ; trust
            pairs by episode number where neither hashes nor seeds were recorded (LeRobot with equal --seed); no disables it.
        json_path: write all results to this file.
        fail_on_regression: exit with 1 if the verdict on an arm is "worse", or every compared episode of A or B ended with an
            error.
    """
    from rich.console import Console

    from keystone_robotics.compare.comparison import compare_all
    from keystone_robotics.compare.find import read_arms
    from keystone_robotics.compare.table import lines
    from keystone_robotics.tables import printable

    comparisons = compare_all(read_arms(a, b, flat(arms)), paired, tasks)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for comparison in comparisons:
        console.print("\n".join(lines(comparison)))
        console.print(printable(comparison.verdict) + "\n", style="bold")
    if json_path is not None:
        try:
            json_path.parent.mkdir(parents=True, exist_ok=True)
            json_path.write_text(json.dumps({"comparisons": [one.as_dict() for one in comparisons]}, indent=2) + "\n")
        except OSError as error:
            raise KeystoneError(f"cannot write {json_path}: {error.strerror}") from None
    if fail_on_regression and any(one.regression or one.only_errors for one in comparisons):
        raise SystemExit(1)
