"""Pairing audit: whether two arms share their initial states, and the paired episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.compare.outcomes import Mode, Outcomes
from keystone_robotics.errors import KeystoneError
from keystone_robotics.records import EpisodeRecord

#: For each task the initial states in order, for each of them its outcomes (repeats,), 0 or 1.
States = Mapping[str, Sequence[NDArray[np.int64]]]


@dataclass(frozen=True)
class Pairing:
    """Result of the audit.

    Attributes:
        paired: whether differences may be taken state by state.
        by: the evidence: "hash", "seed", "trust"; "none" if unpaired.
        reason: one sentence for the reader.
        differing: (task, episode, hashes in A, hashes in B) where they differ.
        left_out: number of episodes of A and of B without a partner; they are not compared.
    """

    paired: bool
    by: str
    reason: str
    differing: tuple[tuple[str, int, tuple[str, ...], tuple[str, ...]], ...] = ()
    left_out: tuple[int, int] = (0, 0)


def audit(a: Outcomes, b: Outcomes, mode: Mode = "auto") -> Pairing:
    """Decide whether A and B are paired.

    Episodes are matched by task and number. They share an initial state if all known hashes of that number, in both arms and
    all repeats, are equal. If hashes differ anywhere, the numbers do not identify states, and nothing is paired. An episode
    without a hash, because an error came first, is matched by number.

    Raises:
        KeystoneError: if pairing is required and not shown.
        ValueError: for an unknown mode.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode {mode!r}: expected one of {', '.join(get_args(Mode))}")
    found = Pairing(False, "none", "unpaired, as requested") if mode == "no" else _audit(a, b, trust=mode == "trust")
    if mode == "require" and not found.paired:
        raise KeystoneError(f"pairing is required, but the data are {found.reason}")
    return found


def _audit(a: Outcomes, b: Outcomes, trust: bool) -> Pairing:
    of_a, of_b = _by_number(a.episodes), _by_number(b.episodes)
    shared = sorted(of_a.keys() & of_b.keys())
    rollouts_a, rollouts_b = ({(one.task, one.episode, one.repeat) for one in arm.episodes} for arm in (a, b))
    both = len(rollouts_a & rollouts_b)
    left_out = (len(rollouts_a) - both, len(rollouts_b) - both)
    if not both:
        how = "to pair, give both runs the same tasks, episodes and repeats"
        return Pairing(False, "none", f"unpaired: no episode (task, number, repeat) is in both; {how}")
    hashes = {key: (_hashes(of_a[key]), _hashes(of_b[key])) for key in shared}
    differing = tuple((*key, *sides) for key, sides in hashes.items() if len({*sides[0], *sides[1]}) > 1)
    if differing:
        shown = ", ".join(f"{task} episode {number}" for task, number, _, _ in differing[:3])
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        return Pairing(
            False,
            "none",
            f"unpaired: the initial states differ in {len(differing)} of {len(shared)} episodes ({shown}{more}); to pair, run "
            "both with the same --env and --seed, or as arms of one `keystone eval`",
            differing,
        )
    unknown = [key for key, sides in hashes.items() if not all(sides)]
    known = len(shared) - len(unknown)
    if known and all(any(one.error for one in (*of_a[key], *of_b[key])) for key in unknown):
        rest = f"; {len(unknown)} without, because of errors, by number" if unknown else ""
        return Pairing(True, "hash", f"paired: the hashes of {known} initial states agree{rest}", left_out=left_out)
    seeds = {(one.initial_seed, other.initial_seed) for key in shared for one in of_a[key] for other in of_b[key]}
    if a.tool == b.tool and all(one is not None and one == other for one, other in seeds):
        reason = "paired by seed, not audited: the seeds agree, the initial states were not recorded"
        return Pairing(True, "seed", reason, left_out=left_out)
    if trust:
        reason = "paired by episode number on request, not audited: no initial state was recorded"
        return Pairing(True, "trust", reason, left_out=left_out)
    how = (
        "to pair, run both as arms of one `keystone eval`, or, if both tools were started with the same --seed, tasks and "
        "number of episodes, so that episode n begins alike, give --paired trust"
    )
    return Pairing(False, "none", f"unpaired: no hashes of initial states to compare, and no seeds that agree; {how}")


def _by_number(episodes: Iterable[EpisodeRecord]) -> dict[tuple[str, int], list[EpisodeRecord]]:
    found: dict[tuple[str, int], list[EpisodeRecord]] = {}
    for episode in episodes:
        found.setdefault((episode.task, episode.episode), []).append(episode)
    return found


def _hashes(episodes: Iterable[EpisodeRecord]) -> tuple[str, ...]:
    return tuple(sorted({episode.initial_state for episode in episodes if episode.initial_state}))


def compared(a: Outcomes, b: Outcomes, pairing: Pairing) -> tuple[list[EpisodeRecord], list[EpisodeRecord]]:
    """The episodes to compare, sorted: of common tasks and, if paired, with a partner in the other arm."""
    tasks = set(a.tasks) & set(b.tasks)
    ours, theirs = ({(one.task, one.episode, one.repeat): one for one in arm.episodes} for arm in (a, b))
    if pairing.paired:
        keys = sorted(ours.keys() & theirs.keys())
        return [ours[key] for key in keys], [theirs[key] for key in keys]
    return (
        [ours[key] for key in sorted(ours) if key[0] in tasks],
        [theirs[key] for key in sorted(theirs) if key[0] in tasks],
    )


def arrange(a: Sequence[EpisodeRecord], b: Sequence[EpisodeRecord], paired: bool) -> tuple[States, States]:
    """The outcomes of both arms by task and initial state; if paired, in the same order.

    Numbers with the same hash are one initial state, and their outcomes are repeats: a benchmark that cycles through fifty
    states twice has fifty, not a hundred.

    >>> twice = [EpisodeRecord("push", number, True, initial_state="s") for number in range(2)]
    >>> arrange(twice, twice, paired=True)[0]
    {'push': [array([1, 1])]}
    """
    if paired:  # a hash missing in one arm because of an error is known from the other
        known = _by_number((*a, *b))
        return _states(a, known), _states(b, known)
    return _states(a, _by_number(a)), _states(b, _by_number(b))


def _states(episodes: Sequence[EpisodeRecord], known: Mapping[tuple[str, int], Sequence[EpisodeRecord]]) -> States:
    found: dict[str, dict[str, list[int]]] = {}
    for episode in episodes:
        hashes = _hashes(known[episode.task, episode.episode])
        # several hashes for one number: numbers do not identify states, so every rollout is a state of its own
        state = hashes[0] if len(hashes) == 1 else (episode.initial_state or f"number {episode.episode}")
        found.setdefault(episode.task, {}).setdefault(state, []).append(int(episode.success))
    return {task: [np.array(values) for values in states.values()] for task, states in found.items()}
