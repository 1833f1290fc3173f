"""Counters since attaching."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from keystone_robotics.sample.event import RoundEvent


@dataclass
class Counters:
    """Sums over all rounds except those of the policy's own code (K = 1 without a seed).

    Attributes:
        rounds: number of rounds.
        chunks: chunks selected: one for each row of a round.
        drawn: candidates, of all rows; fewer than K times the chunks with adaptive K.
        clustered: how many of them were selected from a cluster.
        dropped: candidates dropped because they were not finite.
        consensus, dispersion: sums over chunks.
        sampling_seconds: drawing candidates, with encoding inside the sampler.
        selection_seconds: selecting one.
    """

    rounds: int = 0
    chunks: int = 0
    drawn: int = 0
    clustered: int = 0
    dropped: int = 0
    consensus: float = 0.0
    dispersion: float = 0.0
    sampling_seconds: float = 0.0
    selection_seconds: float = 0.0

    def add(self, event: RoundEvent) -> None:
        """Count a round."""
        selection = event.selection
        self.rounds += 1
        self.chunks += len(selection.index)
        self.drawn += int(selection.drawn.sum())
        self.clustered += int(selection.clustered.sum())
        self.dropped += int(selection.dropped.sum())
        self.consensus += float(selection.consensus.sum())
        self.dispersion += float(selection.dispersion.sum())
        self.sampling_seconds += event.times.sample
        self.selection_seconds += event.times.select

    def as_dict(self) -> dict[str, float]:
        """With the means over chunks of consensus and dispersion."""
        chunks = max(self.chunks, 1)
        return {**asdict(self), "consensus": self.consensus / chunks, "dispersion": self.dispersion / chunks}
