"""The answer of `keystone.select`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

#: In `Selection.labels`: this candidate was not drawn for its row (adaptive K).
NOT_DRAWN = -2


class Selection(NamedTuple):
    """Which candidate was selected, and how much the candidates disagree.

    For (K, T, D) candidates the fields are as below; for (B, K, T, D) each has a leading axis B (numpy arrays on the host;
    ``chunk`` is always of the input's own type, device and dtype).

    Attributes:
        index: the selected candidate, or the one nearest to a synthesised chunk.
        chunk: (T, D) the chunk to execute, whole.
        labels: (K,) cluster of each candidate: 0 the winning one, -1 dropped because not finite, -2 not drawn (a row of a batch
            in which the first few candidates agreed, ``k=4..16``).
        sizes: (C,) members of each cluster, the winner's first.
        clustered: whether the candidates were split into clusters.
        consensus: share of the valid candidates in the winning group, 1/K to 1. The group is the winning cluster; where nothing
            was clustered, the candidates within 1.25 core diameters of candidate ``index``, the core being the tightest
            half of them. 1 for one candidate, 1/2 for two that differ.
        spread: the guard's s, distance of the mean to the medoid over the median distance; 0 for one candidate.
        median_distance: lower median of the pairwise distances over what counts; 0 for one candidate.
        dispersion: d / (d + m), 0 to 1: d the median distance, m the typical motion, which is the distance of the medoid
            to standing still at its first step. 0: all candidates are equal; 1/2: they lie as far apart as the medoid moves;
            1: they differ and it does not move. It has no unit and does not grow with the number of steps, so that policies
            can be compared.
        rule: name of the rule.
        synthesised: the chunk was made by averaging: it is none of the candidates.
        agreed_steps: how many steps of the chunk the candidates agree on, from the first that is executed; execute no more of
            them before the next round. None unless ``execute`` is adaptive.

    >>> import numpy as np, keystone_robotics as keystone
    >>> ways = np.array([[0, 1, 2], [0, 1.1, 2], [0, 0.9, 2], [0, -1, -2]])[..., None]
    >>> print(keystone.select(ways, rule="core-mean"))
    core-mean averaged, nearest to candidate 0 of 4: consensus 0.75, dispersion 0.08, spread 5.59, median distance 0.2
    """

    index: Any
    chunk: Any
    labels: Any
    sizes: Any
    clustered: Any
    consensus: Any
    spread: Any
    median_distance: Any
    dispersion: Any
    rule: str
    synthesised: bool = False
    agreed_steps: Any = None

    @property
    def valid(self) -> Any:
        """(K,) which candidates are finite."""
        return self.labels >= 0

    @property
    def dropped(self) -> Any:
        """How many candidates were dropped because they hold a NaN or an infinity."""
        return _count(self.labels == -1)

    @property
    def drawn(self) -> Any:
        """How many candidates were drawn: K, or with adaptive K the first few where they agree."""
        return _count(self.labels != NOT_DRAWN)

    def __repr__(self) -> str:
        how = "averaged, nearest to" if self.synthesised else "selected"
        if np.ndim(self.index) and len(self.index) == 1:
            first = (value[0] if np.ndim(value) or name == "chunk" else value for name, value in self._asdict().items())
            return repr(Selection(*first))
        if np.ndim(self.index):
            rounds = len(self.index)
            parts = [
                f"{self.rule} {how} candidates {self.index.tolist()} of {self.labels.shape[-1]} for {rounds} observations",
                f"clustered {int(self.clustered.sum())} of {rounds}",
                f"mean consensus {self.consensus.mean():.2f}, mean dispersion {self.dispersion.mean():.2f}",
            ]
        else:
            groups = f" (clusters of {', '.join(map(str, self.sizes.tolist()))})" if self.clustered else ""
            parts = [
                f"{self.rule} {how} candidate {self.index} of {len(self.labels)}",
                f"consensus {self.consensus:.2f}{groups}, dispersion {self.dispersion:.2f}",
                f"spread {self.spread:.2f}, median distance {self.median_distance:.3g}",
            ]
        dropped = int(np.sum(self.dropped))
        return f"{parts[0]}: {', '.join(parts[1:])}" + (f"; dropped {dropped} that were not finite" if dropped else "")


def _count(which: Any) -> Any:
    count = which.sum(-1)
    return count if count.ndim else int(count)
