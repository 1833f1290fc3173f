"""What a rule is: a frozen dataclass of its parameters, with one method that decides."""

from __future__ import annotations

import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Union

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select.engine import Outcome, cluster_medoids
from keystone_robotics.select.rounds import Candidates, Choice, Round, as_float64
from keystone_robotics.select.space import ActionSpace

#: What was decided about all rounds of a call, and (B, T, D) chunks if the rule made its own.
Decision = tuple[Outcome, Union[NDArray[np.float64], None]]


@dataclass(frozen=True)
class Rule(ABC):
    """A way to choose. Subclasses are frozen dataclasses: their fields are the rule's parameters, checked when made."""

    name: ClassVar[str]
    #: The rule compares with the previous chunk; an attached policy then tells it (``previous=``).
    remembers: ClassVar[bool] = False

    @abstractmethod
    def choose(self, candidates: Candidates) -> Decision:
        """Decide about every round."""


@dataclass(frozen=True)
class RoundRule(Rule):
    """A rule that looks at one round at a time, and only at its valid candidates."""

    @abstractmethod
    def choose_one(self, round: Round) -> int | Choice:
        """Decide about one round: an index into ``round.chunks``, or a `Choice`."""

    def choose(self, candidates: Candidates) -> Decision:
        outcome = cluster_medoids(candidates.features, candidates.metric, candidates.seed)
        choices = [as_choice(self.choose_one(round), round) for round in rounds(candidates, outcome)]
        if len(choices) < len(outcome.indices):
            return outcome, None  # a round without a valid candidate: the caller raises
        return adopt(candidates, outcome, choices)


@dataclass(frozen=True)
class FunctionRule(RoundRule):
    """A user's own function of a `Round`."""

    function: Callable[..., Any]
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:  # type: ignore[override]
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.function).bind(None, **self.params)
        except TypeError as error:
            raise TypeError(f"rule {self.name!r} cannot be called as {self.name}(round, …): {error}") from None

    def choose_one(self, round: Round) -> int | Choice:
        return self.function(round, **self.params)  # type: ignore[no-any-return]


def rounds(candidates: Candidates, outcome: Outcome) -> Iterator[Round]:
    """The rounds of a call one by one, as rules see them; stops before the first without a valid candidate."""
    space = candidates.space or ActionSpace()
    for row, labels in enumerate(outcome.labels):
        valid = labels >= 0
        if not valid.any():
            return
        chunks, features = candidates.chunks[row][valid], candidates.features[row][valid]
        yield Round(chunks, features, candidates.metric, space, candidates.seed, row)


def as_choice(answer: Any, round: Round) -> Choice:
    """Check what a rule returned."""
    choice = answer if isinstance(answer, Choice) else Choice(answer)
    n = len(round.chunks)
    try:
        if isinstance(choice.index, (bool, np.bool_)):  # a mask's entry or a comparison, not a position
            raise TypeError
        index = operator.index(choice.index)
    except TypeError:
        raise TypeError(f"a rule must return an index or a keystone.Choice, not {choice.index!r}") from None
    if not 0 <= index < n:
        raise ValueError(f"a rule returned index {index}, but it was shown {n} candidates: 0 to {n - 1}")
    if choice.labels is not None and np.shape(choice.labels) != (n,):
        raise ValueError(f"a rule returned labels of shape {np.shape(choice.labels)}, expected ({n},)")
    chunk = choice.chunk
    if chunk is not None:
        chunk = as_float64(chunk)
        if chunk.shape != round.chunks.shape[1:]:
            raise ValueError(f"a rule made a chunk of shape {chunk.shape}, expected {round.chunks.shape[1:]}")
        if not np.isfinite(chunk).all():
            raise ValueError("a rule made a chunk that holds a NaN or an infinity")
    return Choice(index, choice.labels, chunk)


def adopt(candidates: Candidates, outcome: Outcome, choices: list[Choice]) -> Decision:
    """The survey of the rounds with one choice for each in place of the medoid."""
    indices, groups = outcome.indices.copy(), list(outcome.sizes)
    for row, choice in zip(indices, choices, strict=True):
        row[0] = np.flatnonzero(row[2:] >= 0)[choice.index]
    for number, (row, choice) in enumerate(zip(indices, choices, strict=True)):
        if choice.labels is not None:
            row[1] = 1
            row[2:][row[2:] >= 0], groups[number] = _winner_first(np.asarray(choice.labels), choice.index)
    sizes = np.zeros((len(groups), max(map(len, groups))), np.int64)
    for number, group in enumerate(groups):
        sizes[number, : len(group)] = group
    adopted = Outcome(indices, sizes, outcome.measures, outcome.dropped)
    if all(choice.chunk is None for choice in choices):
        return adopted, None
    chosen = zip(choices, candidates.chunks, indices[:, 0], strict=True)
    made = [chunks[index] if choice.chunk is None else choice.chunk for choice, chunks, index in chosen]
    return adopted, np.stack(made).astype(np.float64)


def _winner_first(labels: NDArray[Any], index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Renumber clusters: 0 the chosen candidate's, then by size."""
    names, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.lexsort((np.arange(len(names)), -counts, np.arange(len(names)) != numbers[index]))
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    return rank[numbers], counts[order]
