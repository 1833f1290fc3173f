"""One row of one round as scores see it: the same from a live `RoundEvent` and from a stored `RoundRecord`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from keystone_robotics.records import RoundRecord
from keystone_robotics.sample.adapter import Window
from keystone_robotics.sample.event import RoundEvent
from keystone_robotics.select import ActionSpace
from keystone_robotics.select.space import Layout

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Observed:
    """What the candidates of one observation were, and how far they agree.

    Attributes:
        chunks: (K, T, D) tensor or array, as the policy's sampler returned them.
        labels: (K,) cluster of each candidate, 0 the winning one; -1 if it was dropped as non-finite.
        consensus: `Selection.consensus`.
        dispersion: `Selection.dispersion`; nan if unknown.
        space: what counted in distances; None if everything did.
        start: first executed step of a chunk.
        executed: steps that are executed before the next round; None if unknown.
        relative: dimensions that are relative to the robot's position at the beginning of the chunk; None if unknown.
    """

    chunks: Any
    labels: NDArray[np.int64]
    consensus: float
    dispersion: float
    space: ActionSpace | None = None
    start: int = 0
    executed: int | None = None
    relative: tuple[int, ...] | None = None

    @functools.cached_property
    def candidates(self) -> Floats:
        """(n, T, N) the finite candidates: for each step the numbers that count, scaled and embedded as `space` says."""
        tensor = isinstance(self.chunks, torch.Tensor)
        chunks = self.chunks.float().numpy(force=True) if tensor else np.asarray(self.chunks, np.float32)
        if self.valid < len(chunks):
            chunks = chunks[self.labels >= 0]
        layout = self.layout
        if layout.is_exact:  # a choice of dimensions
            return np.asarray(chunks[..., list(layout.plain)], np.float64)
        n, steps, _ = chunks.shape
        embedded = replace(layout, steps=tuple(range(steps))).embed(np.asarray(chunks, np.float64))
        return np.asarray(embedded.reshape(n, steps, -1), np.float64)

    @functools.cached_property
    def layout(self) -> Layout:
        """What counts, resolved for these chunks."""
        steps, dims = self.chunks.shape[1:]
        return (self.space or ActionSpace()).layout(steps, dims)

    @functools.cached_property
    def counted(self) -> Floats:
        """(n, S, N) the candidates over the steps that count in distances."""
        return self.candidates[:, list(self.layout.steps)]

    @functools.cached_property
    def distances(self) -> Floats:
        """(n, n) distances of the candidates over what counts."""
        return distances(self.counted, self.counted)

    @property
    def valid(self) -> int:
        """Number of finite candidates."""
        return int((self.labels >= 0).sum())

    def split(self) -> str:
        """Members of each cluster, the winner's first: ``9 : 7``.

        >>> Observed(np.zeros((3, 1, 1)), np.array([0, 1, 0]), 2 / 3, 0.0).split()
        '2 : 1'
        """
        return " : ".join(str(size) for size in np.bincount(self.labels[self.labels >= 0]) if size)


def distances(a: Floats, b: Floats) -> Floats:
    """(n, m) Euclidean distances of sets (n, …) and (m, …), from differences: products would cancel."""
    first, second = (torch.from_numpy(one.reshape(len(one), -1)) for one in (a, b))
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").numpy()


def observe(event: RoundEvent) -> Iterator[Observed]:
    """The rows of a live round, for scores: with the previous round of the same episode, if there was one.

    >>> import keystone_robotics as keystone
    >>> from keystone_robotics.monitor import SCORES
    >>> class Policy(torch.nn.Module):
    ...     def act(self):
    ...         return torch.randn(1, 8, 2)
    >>> policy, seen = Policy(), []
    >>> handle = keystone.attach(policy, k=16, site="act", execute=4, seed=0)
    >>> stop = handle.subscribe(lambda event: seen.extend(observe(event)))
    >>> chunks = policy.act(), policy.act()
    >>> before, now = seen
    >>> round(SCORES["variance"](now), 1), SCORES["overlap-distance"](now, before) > 0
    (1.1, True)
    """
    selection, window = event.selection, event.window
    agreed = selection.agreed_steps
    for row in range(len(event.candidates)):
        yield Observed(
            event.candidates[row],
            np.asarray(selection.labels[row]),
            float(selection.consensus[row]),
            float(selection.dispersion[row]),
            event.space,
            **{**_window(window), **({} if agreed is None else {"executed": int(agreed[row])})},
        )


def observe_record(record: RoundRecord) -> Observed:
    """A stored round. Rounds stored before 0.2.0 do not say what counted: the dimensions and steps of the actions do."""
    executed, dims = record.actions.shape if record.actions.ndim == 2 else (len(record.actions), 1)
    space = record.space
    if space is None and record.window is None:
        steps, width = record.candidates.shape[1:]
        space = ActionSpace(dims=max(1, min(dims, width)), steps=max(1, min(executed, steps)))
    return Observed(
        record.candidates,
        record.labels,
        record.consensus,
        np.nan if record.dispersion is None else record.dispersion,
        space,
        **{**_window(record.window), "executed": executed},
    )


def _window(window: Window | None) -> dict[str, Any]:
    return {} if window is None else {"start": window.start, "executed": window.steps, "relative": window.relative}
