"""Detections as rows of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keystone_robotics.monitor.detection import Detection
from keystone_robotics.monitor.separation import Estimate

HEADING = [
    "score", "alarming", "AUROC", "AUROC, whole episodes", "failures found, %", "false alarms, %", "nominal, %",
    "balanced accuracy, %", "episode left, %",
]  # fmt: skip

LEGEND = (
    "AUROC within task: a failure and a success of one task are compared up to the end of the shorter one; over whole episodes "
    "noise has more than 0.5 too, because failures are longer. Failures found, false alarms and balanced accuracy are at the "
    "calibrated limit; episode left: when it rings, in the failures found. 95 % intervals by bootstrap over initial states."
)


def rows(detections: Sequence[Detection]) -> list[list[str]]:
    """One row for each, heading first."""
    return [HEADING, *(row(one) for one in detections)]


def row(one: Detection) -> list[str]:
    """A detection as text."""
    return [
        one.score, one.direction, str(one.auroc), str(one.auroc_whole), percent(one.true_positives),
        percent(one.false_alarms), f"{100 * one.nominal:g}", percent(one.balanced_accuracy), percent(one.left),
    ]  # fmt: skip


def percent(one: Estimate) -> str:
    """In per cent, with the interval."""
    if one.value != one.value:
        return "–"
    return f"{100 * one.value:.0f} [{100 * one.low:.0f}, {100 * one.high:.0f}]"


def score_rows(
    directions: Mapping[str, tuple[str, Estimate, Estimate]], too_few: str = "", needed: Mapping[str, int] | None = None
) -> list[list[str]]:
    """One row for each score: alarming direction, AUROC, AUROC over whole episodes, whether it separates, or why the run cannot
    say. Then one for each score that needs more candidates than the run has.
    """
    heading = ["score", "alarming", "AUROC", "AUROC, whole episodes", "tells failures"]
    return [
        heading,
        *(
            [name, direction, str(found), str(whole), too_few or ("yes" if found.separates else "no")]
            for name, (direction, found, whole) in directions.items()
        ),
        *([name, "–", "–", "–", f"–, needs K > {k - 1}"] for name, k in (needed or {}).items()),
    ]
