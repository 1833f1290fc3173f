"""What a rule is: a frozen dataclass of its parameters, with one method that selects."""

from __future__ import annotations

import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select.engine import BatchResult, select_rounds
from keystone_robotics.select.metrics import distances_to
from keystone_robotics.select.rounds import Candidates, Round, RuleResult, as_float64
from keystone_robotics.select.space import ActionSpace


@dataclass(frozen=True)
class Rule(ABC):
    """A selection rule. Subclasses are frozen dataclasses: their fields are the rule's parameters, checked when made."""

    name: ClassVar[str]
    #: The rule compares with the previous chunk; an attached policy then tells it (``previous=``).
    remembers: ClassVar[bool] = False

    @abstractmethod
    def select_batch(self, candidates: Candidates) -> BatchResult:
        """Select in every round."""


@dataclass(frozen=True)
class RoundRule(Rule):
    """A rule that looks at one round at a time, and only at its valid candidates."""

    @abstractmethod
    def select_round(self, round: Round) -> int | RuleResult:
        """Select in one round: an index into ``round.chunks``, or a `RuleResult`."""

    def select_batch(self, candidates: Candidates) -> BatchResult:
        medoids = select_rounds(candidates)
        results = [checked(self.select_round(round), round) for round in rounds(candidates, medoids)]
        if len(results) < len(medoids.indices):
            return medoids  # a round without a valid candidate: the caller raises
        return with_results(candidates, medoids, results)


@dataclass(frozen=True)
class FunctionRule(RoundRule):
    """A user's own function of a `Round`."""

    function: Callable[..., Any]
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:  # type: ignore[override]
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def names(self) -> list[str]:
        """Of its parameters, after the round."""
        return list(inspect.signature(self.function).parameters)[1:]

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.function).bind(None, **self.params)
        except TypeError as error:
            raise TypeError(f"rule {self.name!r} cannot be called as {self.name}(round, …): {error}") from None

    def select_round(self, round: Round) -> int | RuleResult:
        return self.function(round, **self.params)  # type: ignore[no-any-return]


def rounds(candidates: Candidates, result: BatchResult) -> Iterator[Round]:
    """The rounds of a call one by one, as rules see them; stops before the first without a valid candidate."""
    space = candidates.space or ActionSpace()
    for row, labels in enumerate(result.labels):
        valid = labels >= 0
        if not valid.any():
            return
        chunks, features = candidates.chunks[row][valid], candidates.features[row][valid]
        yield Round(chunks, features, candidates.metric, space, candidates.seed, row)


def checked(returned: Any, round: Round) -> RuleResult:
    """What a rule returned, as a `RuleResult`, or a clear error."""
    result = returned if isinstance(returned, RuleResult) else RuleResult(returned)
    n = len(round.chunks)
    try:
        if isinstance(result.index, (bool, np.bool_)):  # a mask's entry or a comparison, not a position
            raise TypeError
        index = operator.index(result.index)
    except TypeError:
        raise TypeError(f"a rule must return an index or a keystone.RuleResult, not {result.index!r}") from None
    if not 0 <= index < n:
        raise ValueError(f"a rule returned index {index}, but it was shown {n} candidates: 0 to {n - 1}")
    if result.labels is not None and np.shape(result.labels) != (n,):
        raise ValueError(f"a rule returned labels of shape {np.shape(result.labels)}, expected ({n},)")
    chunk = result.chunk
    if chunk is not None:
        chunk = as_float64(chunk)
        if chunk.shape != round.chunks.shape[1:]:
            raise ValueError(f"a rule made a chunk of shape {chunk.shape}, expected {round.chunks.shape[1:]}")
    return RuleResult(index, result.labels, chunk)


def with_results(candidates: Candidates, batch: BatchResult, results: list[RuleResult]) -> BatchResult:
    """A batch with the result of a rule for each round in place of what was selected there."""
    indices, measures, clusters = batch.indices.copy(), batch.measures.copy(), list(batch.sizes)
    for row, result in enumerate(results):
        valid = np.flatnonzero(indices[row, 2:] >= 0)
        indices[row, 0] = valid[result.index]
        if result.labels is not None:
            indices[row, 1] = 1
            indices[row, 2:][valid], clusters[row] = _winner_first(np.asarray(result.labels), result.index)
        if indices[row, 1]:
            measures[row, 2] = clusters[row][0] / len(valid)
        else:
            features = candidates.features[row][valid].astype(np.float64)
            apart = distances_to(features, features[result.index], candidates.metric)
            measures[row, 2] = (apart <= measures[row, 4]).mean()
    sizes = np.zeros((len(clusters), max(map(len, clusters))), np.int64)
    for row, members in enumerate(clusters):
        sizes[row, : len(members)] = members
    chunks = None
    if any(result.chunk is not None for result in results):
        selected = zip(results, candidates.chunks, indices[:, 0], strict=True)
        whole = [shown[index] if result.chunk is None else result.chunk for result, shown, index in selected]
        chunks = np.stack(whole).astype(np.float64)
    return BatchResult(indices, sizes, measures, batch.members, batch.dropped, chunks)


def _winner_first(labels: NDArray[Any], index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Renumber clusters: 0 the selected candidate's, then by size."""
    names, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.lexsort((np.arange(len(names)), -counts, np.arange(len(names)) != numbers[index]))
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    return rank[numbers], counts[order]
