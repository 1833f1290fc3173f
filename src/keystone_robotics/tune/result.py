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
FILE, RACE, CONFIRM = "tune.json", "race", "confirm"


@dataclass(frozen=True)
class ArmResult:
    """One arm of the table.

    Attributes:
        arm: its specification.
        rate: share of successes in the race, mean over tasks; None if it did not run.
        episodes: in the race.
        errors: episodes that ended with an error; they count as failures.
        latency_ms: median of one round; None if it was not measured.
        latency_ratio: to the policy as it is.
        fate: what became of it, in words.
        rival: the arm that led its group when it left the race.
    """

    arm: str
    rate: float | None
    episodes: int
    errors: int
    latency_ms: float | None
    latency_ratio: float | None
    fate: str
    rival: str | None = None


@dataclass(frozen=True)
class Tuned:
    """A finished tuning run.

    Attributes:
        settings: policy, environment, tasks, budget and so on.
        used: episodes of the race and of the confirmation.
        race_states: initial states of each task in the race, numbered from 0.
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

    def as_dict(self) -> dict[str, Any]:
        """For JSON. What depends on this call alone is left out: a run that was interrupted ends with the same file."""
        return {
            "settings": dict(self.settings),
            "episodes": self.used,
            "race_states": self.race_states,
            "confirm_states": self.confirm_states,
            "recommended": str(self.recommended),
            "headline": self.verdict.headline,
            "notes": list(self.verdict.notes),
            "finalists": list(self.finalists),
            "arms": [asdict(one) for one in self.arms],
            "confirmation": [one.as_dict() for one in self.verdict.comparisons],
            "usage": usage(self.recommended),
        }

    def markdown(self) -> str:
        """The whole result for a reader."""
        settings, first, last = self.settings, self.race_states, self.race_states + self.confirm_states - 1
        parts = [
            f"# {settings['policy']} in {settings['env']}",
            f"**{self.verdict.headline}.**",
            *self.verdict.notes,
            f"{self.used} of {settings['budget']} episodes; tasks: {', '.join(settings['tasks'])}.",
            "## Use it",
            f"```yaml\n{as_yaml(self.recommended, str(self.recommended))}```",
            "## Confirmation",
            f"On {self.confirm_states} initial states of each task (numbers {first} to {last}); the race used those before.",
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
            "one round": ["" if one.latency_ms is None else f"{one.latency_ms:.1f} ms" for one in arms],
            "× as it is": ["" if one.latency_ratio is None else f"{one.latency_ratio:.2f}" for one in arms],
            "errors": [str(one.errors or "") for one in arms],
            "result": [one.fate for one in arms],
        }
    )


def write_result(folder: Path, tuned: Tuned) -> None:
    """Write ``tune.json``, ``tune.md`` and ``recommended.yaml``.

    Raises:
        KeystoneError: if they cannot be written.
    """
    write_file(folder / FILE, json.dumps(tuned.as_dict(), indent=2, ensure_ascii=False) + "\n")
    write_file(folder / "tune.md", tuned.markdown())
    write_file(folder / "recommended.yaml", as_yaml(tuned.recommended, tuned.verdict.headline))
