"""The input of every comparison, whichever tool rolled out the episodes: the episodes of one arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from keystone_robotics.records import EpisodeRecord

#: How episodes are paired. auto: if the audit shows that initial states agree; require: an error if it does not; trust: by
#: episode number, where neither hashes nor seeds were recorded; no: never.
Mode = Literal["auto", "require", "trust", "no"]


@dataclass(frozen=True)
class Outcomes:
    """The episodes of one arm.

    Attributes:
        name: name of the arm.
        source: file or folder it was read from.
        tool: that rolled out the episodes: "keystone", "lerobot" or "vla-eval".
        episodes: in any order.
        time: what was timed ("one round", "one episode") and its milliseconds; None if nothing was.
        settings: that should be equal in both arms; the comparison notes where they differ.
        notes: for the reader of the comparison.
    """

    name: str
    source: str
    tool: str
    episodes: tuple[EpisodeRecord, ...]
    time: tuple[str, float] | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks, sorted.

        >>> episodes = (EpisodeRecord("push", 0, True), EpisodeRecord("hammer", 0, False))
        >>> Outcomes("first", "runs/mine", "keystone", episodes).tasks
        ('hammer', 'push')
        """
        return tuple(sorted({episode.task for episode in self.episodes}))
