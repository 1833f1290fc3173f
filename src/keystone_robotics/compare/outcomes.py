"""What every comparison starts from, whoever rolled the episodes out: one record for each arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: How episodes are paired. auto: if the audit shows that they can be; require: it is an error if it does not; trust: by
#: number at the caller's word, where nothing was recorded that could be audited; no: not at all.
Mode = Literal["auto", "require", "trust", "no"]


@dataclass(frozen=True)
class Episode:
    """One rollout.

    Attributes:
        task: its name.
        number: of the initial state within the task.
        repeat: of that initial state, with fresh policy noise.
        success: whether the task was done; False where an error ended it.
        state: hash of the initial state; None if it is not known.
        seed: that the environment was reset with, as far as it is known.
        error: whether an error ended it.
    """

    task: str
    number: int
    success: bool
    repeat: int = 0
    state: str | None = None
    seed: int | None = None
    error: bool = False


@dataclass(frozen=True)
class Outcomes:
    """The episodes of one arm.

    Attributes:
        name: of the arm.
        source: where they were read.
        tool: that rolled them out: "keystone", "lerobot" or "vla-eval".
        episodes: in any order.
        time: what was timed ("one round", "one episode") and how many milliseconds it took; None if nothing was.
        settings: that should be the same for both arms; where they are not, the comparison says so.
        notes: anything that a reader of the comparison has to know.
    """

    name: str
    source: str
    tool: str
    episodes: tuple[Episode, ...]
    time: tuple[str, float] | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """In order of their names.

        >>> Outcomes("first", "runs/mine", "keystone", (Episode("push", 0, True), Episode("hammer", 0, False))).tasks
        ('hammer', 'push')
        """
        return tuple(sorted({episode.task for episode in self.episodes}))
