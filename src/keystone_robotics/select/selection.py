"""The answer of `keystone.select`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Selection(NamedTuple):
    """Which candidate was chosen, and how the candidates lay.

    For (K, T, D) candidates the fields are as below; for (B, K, T, D) each has a leading axis B (numpy arrays on the host;
    ``chunk`` is always of the input's own type, device and dtype).

    Attributes:
        index: the chosen candidate, or the one nearest to a synthesised chunk.
        chunk: (T, D) the chunk to execute, whole.
        labels: (K,) cluster of each candidate: 0 the winning one, -1 dropped because not finite.
        sizes: (C,) members of each cluster, the winner's first.
        clustered: whether the candidates were split into clusters.
        spread: the guard's s, distance of the mean to the medoid over the median distance; 0 for one candidate.
        median_distance: lower median of the pairwise distances; 0 for one candidate.
        rule: name of the rule.
        synthesised: the chunk was made by averaging: it is none of the candidates.

    >>> import numpy as np, keystone_robotics as keystone
    >>> print(keystone.select(np.linspace(0, 1, 4).reshape(4, 1, 1), rule="medoid"))
    medoid chose candidate 1 of 4: consensus 1.00, spread 0.50, median distance 0.333
    """

    index: Any
    chunk: Any
    labels: Any
    sizes: Any
    clustered: Any
    spread: Any
    median_distance: Any
    rule: str
    synthesised: bool = False

    @property
    def valid(self) -> Any:
        """(K,) which candidates are finite."""
        return self.labels >= 0

    @property
    def dropped(self) -> Any:
        """How many candidates were dropped because they hold a NaN or an infinity."""
        dropped = (self.labels < 0).sum(-1)
        return dropped if dropped.ndim else int(dropped)

    @property
    def consensus(self) -> Any:
        """Share of the valid candidates in the winning cluster; 1 where nothing was clustered."""
        share = self.sizes[..., 0] / self.sizes.sum(-1)
        return share if share.ndim else float(share)

    def to_dict(self, chunk: bool = True) -> dict[str, Any]:
        """Plain numbers, lists and strings, for JSON; ``chunk=False`` leaves the actions out."""
        names = ["index", "labels", "sizes", "clustered", "spread", "median_distance", "rule", "synthesised"]
        plain = {name: _plain(getattr(self, name)) for name in [*names, "consensus", "valid", "dropped"]}
        if chunk:
            plain["chunk"] = self.chunk.tolist()
        return plain

    def __repr__(self) -> str:
        made = "averaged, nearest to" if self.synthesised else "chose"
        if np.ndim(self.index) and len(self.index) == 1:
            first = (value[0] if np.ndim(value) or name == "chunk" else value for name, value in self._asdict().items())
            return repr(Selection(*first))
        if np.ndim(self.index):
            rounds = len(self.index)
            parts = [
                f"{self.rule} {made} candidates {self.index.tolist()} of {self.labels.shape[-1]} for {rounds} observations",
                f"clustered {int(self.clustered.sum())} of {rounds}, mean consensus {self.consensus.mean():.2f}",
            ]
        else:
            groups = f" (clusters of {', '.join(map(str, self.sizes.tolist()))})" if self.clustered else ""
            parts = [
                f"{self.rule} {made} candidate {self.index} of {len(self.labels)}",
                f"consensus {self.consensus:.2f}{groups}, spread {self.spread:.2f}, median distance {self.median_distance:.3g}",
            ]
        dropped = int(np.sum(self.dropped))
        return ": ".join(parts) + (f"; dropped {dropped} that were not finite" if dropped else "")


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
