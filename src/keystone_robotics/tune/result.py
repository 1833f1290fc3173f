"""The result of a tuning run as a table, JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keystone_robotics.files import write_file
from keystone_robotics.spec import Spec
from keystone_robotics.tables import as_markdown, from_columns
from keystone_robotics.tune.usage import as_yaml, usage
from keystone_robotics.tune.verdict import Verdict

#: Name of the result in the folder of a tuning run, and of the folders of its episodes.
RESULT_FILE, RACE_FOLDER, CONFIRM_FOLDER = "tune.json", "race", "confirm"


@dataclass(frozen=True)
class ArmResult:
    """One arm of the table.

    Attributes:
        arm: its specification.
        rate: share of successes in the race, mean over tasks; None if it did not run.
        episodes: in the race.
        errors: episodes that ended with an error; they count as failures.
        latency_ms: median of one round; None if it was not measured.
        latency_ratio: time of an executed step, to the policy as it is.
        status: how far it came, in words.
        eliminated_by: the arm that led its group when it left the race.
    """

    arm: str
    rate: float | None
    episodes: int
    errors: int
    latency_ms: float | None
    latency_ratio: float | None
    status: str
    eliminated_by: str | None = None


@dataclass(frozen=True)
class Tuned:
    """A finished tuning run.

    Attributes:
        settings: policy, environment, tasks, budget and so on.
        used: episodes of the race and of the confirmation.
        race_states: initial states of each task in the race, numbered from 0.
        confirm_first: number of the first initial state of the confirmation; those of earlier confirmations are not used again.
        confirm_states: initial states of each task in the confirmation, numbered on from there.
        arms: best first.
        finalists: what is known about arms that the race could not tell apart, one sentence each.
        verdict: what to use.
        new: episodes rolled out by this call.
        seconds: taken by this call.
    """

    settings: Mapping[str, Any]
    used: int
    race_states: int
    confirm_first: int
    confirm_states: int
    arms: tuple[ArmResult, ...]
    finalists: tuple[str, ...]
    verdict: Verdict
    new: int
    seconds: float

    @property
    def recommended(self) -> Spec:
        return self.verdict.recommended

    def rows(self, raced: bool = False) -> list[list[str]]:
        """The table of arms as text, heading first.

        Args:
            raced: only those that ran.
        """
        return arm_rows([one for one in self.arms if one.episodes or not raced])

    def confirmation_rows(self) -> list[list[str]]:
        """The table of the confirmation as text, heading first: the policy as it is, then what the race chose."""
        to_own = [one for one in self.verdict.comparisons if one.a == self.verdict.comparisons[0].a]
        measured = {one.arm: one for one in self.arms}
        names = [to_own[0].a, *(one.b for one in to_own)]
        rates = [to_own[0].overall.a, *(one.overall.b for one in to_own)]
        return from_columns(
            {
                "arm": names,
                "success, %": [f"{100 * one.rate:.1f}" for one in rates],
                "n": [str(one.episodes) for one in rates],
                "to the policy as it is": ["", *(one.points for one in to_own)],
                **_latency_columns([measured[name] for name in names]),
                "errors": [str(one.errors or "") for one in rates],
                "result": ["the policy as it is", *(one.outcome for one in to_own)],
            }
        )

    @property
    def only_errors(self) -> list[str]:
        """The confirmed arms of which every episode ended with an error."""
        return list(
            dict.fromkeys(
                {"A": one.a, "B": one.b}[side] for one in self.verdict.comparisons for side in one.only_errors
            )
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON. What depends on this call alone is left out: a run that was interrupted ends with the same file."""
        return {
            "settings": dict(self.settings),
            "episodes": self.used,
            "race_states": self.race_states,
            "confirm_first": self.confirm_first,
            "confirm_states": self.confirm_states,
            "recommended": str(self.recommended),
            "headline": self.verdict.headline,
            "notes": list(self.verdict.notes),
            "finalists": list(self.finalists),
            "arms": [asdict(one) for one in self.arms],
            "confirmation": [one.as_dict() for one in self.verdict.comparisons],
            "usage": usage(self.recommended),
            "faster": None if self.verdict.faster is None else usage(self.verdict.faster),
        }

    def markdown(self) -> str:
        """The whole result for a reader."""
        settings, first, last = self.settings, self.confirm_first, self.confirm_first + self.confirm_states - 1
        faster = self.verdict.faster
        parts = [
            f"# {settings['policy']} in {settings['env']}",
            f"**{self.verdict.headline}.**",
            *self.verdict.notes,
            f"{self.used} of {settings['budget']} episodes; tasks: {', '.join(settings['tasks'])}.",
            "## Use it",
            f"```yaml\n{as_yaml(self.recommended, str(self.recommended))}```",
            *(["Or, faster:", f"```yaml\n{as_yaml(faster, str(faster))}```"] if faster else []),
            "## Confirmation",
            f"On initial states {first} to {last} of each task; the race used {self.race_states}, from 0 on.",
            as_markdown(self.confirmation_rows()),
            "\n".join(f"- {one.b} against {one.a}: {one.verdict}" for one in self.verdict.comparisons),
            "## Race",
            "\n".join(f"- {line}" for line in self.finalists),
            as_markdown(self.rows()),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


def arm_rows(arms: Sequence[ArmResult]) -> list[list[str]]:
    """A table of arms as text, heading first."""
    return from_columns(
        {
            "arm": [one.arm for one in arms],
            "success, %": ["" if one.rate is None else f"{100 * one.rate:.1f}" for one in arms],
            "n": [str(one.episodes or "") for one in arms],
            **_latency_columns(arms),
            "errors": [str(one.errors or "") for one in arms],
            "result": [one.status for one in arms],
        }
    )


def _latency_columns(arms: Sequence[ArmResult]) -> dict[str, list[str]]:
    return {
        "one round": ["" if one.latency_ms is None else f"{one.latency_ms:.1f} ms" for one in arms],
        "× per executed step": ["" if one.latency_ratio is None else f"{one.latency_ratio:.2f}" for one in arms],
    }


def write_result(folder: Path, tuned: Tuned) -> None:
    """Write ``tune.json``, ``tune.md`` and ``recommended.yaml``.

    Raises:
        KeystoneError: if they cannot be written.
    """
    write_file(folder / RESULT_FILE, json.dumps(tuned.as_dict(), indent=2, ensure_ascii=False) + "\n")
    write_file(folder / "tune.md", tuned.markdown())
    write_file(folder / "recommended.yaml", as_yaml(tuned.recommended, tuned.verdict.headline))
