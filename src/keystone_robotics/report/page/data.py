"""What the page shows, as plain values. Rates, intervals, tests and verdicts are those of `compare`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from keystone_robotics import __version__
from keystone_robotics.compare.comparison import Comparison, Contrast, Rate, compare_all, rate_of
from keystone_robotics.compare.outcomes import Mode, Outcomes
from keystone_robotics.compare.pairing import compared
from keystone_robotics.compare.read_run import measured_latencies
from keystone_robotics.monitor.calibration import Calibration
from keystone_robotics.records import EpisodeKey, RoundRecord, Store
from keystone_robotics.report.alarms import alarm_series
from keystone_robotics.report.page.read import Runs
from keystone_robotics.report.page.rounds import LEVELS, pack_rounds

Series = list[tuple[float, float]]  #: averaged score and limit of an alarm in every round
BUDGET = 11_000_000  #: characters of packed rounds; with everything else a page stays below 15 MB
ERROR = 2000  #: characters kept of an error, the last ones


@dataclass(frozen=True)
class Section:
    """A section of the caller's own, before the episodes.

    Attributes:
        title: its heading.
        text: paragraphs.
        image: PNG or GIF to put into the page.
        alt: what the image shows, in words.
        code: a command for the reader.
    """

    title: str
    text: tuple[str, ...] = ()
    image: Path | None = None
    alt: str = ""
    code: str = ""


def page_data(
    runs: Runs,
    mode: Mode = "auto",
    budget: int = BUDGET,
    sections: Sequence[Section] = (),
    alarm: Calibration | None = None,
    films: int = 0,
) -> dict[str, Any]:
    """Everything that the page shows.

    Args:
        runs: the arms; the others are compared with the first.
        mode: how episodes are paired.
        budget: characters of packed rounds.
        sections: the caller's own.
        alarm: whose score is shown with the rounds of arms with several candidates.
        films: number of episodes that are replayed in the run's environment and shown as films, changed ones first.
    """
    arms = runs.arms
    first = set(arms[0].tasks)
    numbers = [number for number, arm in enumerate(arms) if number and set(arm.tasks) & first]
    comparisons = compare_all([arms[0], *(arms[number] for number in numbers)], mode)
    tasks = sorted({task for arm in arms for task in arm.tasks})
    places: dict[tuple[int, str, int, int], int] = {}
    for number, arm in enumerate(arms):
        for one in arm.episodes:
            places[number, one.task, one.repeat, one.episode] = len(places)
    contrasts = [
        _comparison(arms, number, comparison, places) for number, comparison in zip(numbers, comparisons, strict=True)
    ]
    # one of each comparison, then the next of each
    in_turn = chain.from_iterable(zip_longest(*(one["flips"] for one in contrasts)))
    flipped = [place for pair in in_turn if pair for place in pair]
    order, keys = _order(list(places.values()), flipped), list(_keys(runs))
    rounds, left_out = _rounds(keys, order, budget, alarm)
    # The page lists an episode that changed by its place in the arm that is compared, and opens the first film with several
    # candidates: those are filmed first.
    listed = [place for place in flipped if place >= len(arms[0].episodes)]
    several = [place for place in listed if place in rounds and rounds[place]["shape"][1] > 1]
    wanted = [place for place in dict.fromkeys([*several, *listed, *order]) if place in rounds]
    filmed, not_filmed = _films(keys, wanted, films)
    notes = dict.fromkeys(
        [*(note for arm in arms for note in arm.notes), *(note for one in comparisons for note in one.notes)]
    )
    return {
        "version": __version__,
        "headline": headline(arms, comparisons),
        "notes": [
            *notes,
            *not_filmed,
            *(
                f"{arm.name} has no task in common with {arms[0].name}: not compared"
                for number, arm in enumerate(arms)
                if number and number not in numbers
            ),
        ],
        "arms": [_arm(arm, tasks) for arm in arms],
        "tasks": tasks,
        "comparisons": contrasts,
        "tunings": [asdict(one) for one in runs.tunings],
        "sections": [{**asdict(one), "image": one.image and _data_uri(one.image)} for one in sections],
        "episodes": _episodes(arms, tasks),
        "rounds": rounds,
        "films": filmed,
        "alarm": None if alarm is None else f"{alarm.score}, {alarm.direction} is alarming",
        "left_out": left_out,
        "stored": {"episodes": len(rounds) + len(left_out), "shown": len(rounds)},
    }


def headline(arms: Sequence[Outcomes], comparisons: Sequence[Comparison]) -> str:
    """The answer in one sentence."""
    first = arms[0].name
    if not comparisons:
        rate = rate_of(arms[0])
        return f"{first}: {100 * rate.rate:.1f} % of {rate.episodes} episodes succeed"
    parts = []
    for name in ("improvement", "regression"):
        word = {"improvement": "better", "regression": "worse"}[name]
        found = [one for one in comparisons if getattr(one, name)]
        which = ", ".join(one.b for one in found) if len(found) < 3 else f"{len(found)} of {len(comparisons)} arms"
        if found:
            parts.append(f"{which} {'is' if len(found) == 1 else 'are'} {word} than {first}")
    if parts:
        return "; ".join(parts)
    if len(comparisons) == 1:
        return f"No clear difference between {comparisons[0].b} and {first}"
    return f"None of {len(comparisons)} arms differs clearly from {first}"


def _data_uri(image: Path) -> str:
    return f"data:image/{image.suffix.removeprefix('.')};base64,{base64.b64encode(image.read_bytes()).decode()}"


def _rate(rate: Rate) -> dict[str, Any]:
    return {"rate": rate.rate, "interval": rate.interval, "episodes": rate.episodes, "errors": rate.errors}


def _arm(arm: Outcomes, tasks: Sequence[str]) -> dict[str, Any]:
    latencies = measured_latencies(arm.episodes)
    low, high = np.percentile(latencies, [10, 90]) if latencies else (None, None)
    by_task = {task: tuple(one for one in arm.episodes if one.task == task) for task in tasks}
    return {
        "name": arm.name,
        "source": arm.source,
        "tool": arm.tool,
        **_rate(rate_of(arm)),
        "states": rate_of(arm).states,
        "time": None if arm.time is None else {"what": arm.time[0], "ms": arm.time[1], "low": low, "high": high},
        "tasks": [_rate(rate_of(replace(arm, episodes=mine))) if mine else None for mine in by_task.values()],
    }


def _comparison(
    arms: Sequence[Outcomes], number: int, one: Comparison, places: dict[tuple[int, str, int, int], int]
) -> dict[str, Any]:
    """Arm ``number`` against the first; ``flips`` are (place in the first arm, place in this one) with other outcomes."""
    flips = []
    if one.pairing.paired:
        for a, b in zip(*compared(arms[0], arms[number], one.pairing), strict=True):
            if a.success != b.success:
                flips.append(tuple(places[arm, a.task, a.repeat, a.episode] for arm in (0, number)))
    return {
        "arm": number,
        "verdict": f"{one.b} {rest}" if (rest := one.verdict.removeprefix("B ")) != one.verdict else f"{one.b}: {rest}",
        "outcome": "better" if one.improvement else "worse" if one.regression else "unclear",
        "pairing": one.pairing.reason,
        "paired": one.pairing.paired,
        "advice": one.sequential.advice,
        "interval_by": one.overall.interval_by,
        **_contrast(one.overall),
        "tasks": {task.task: _contrast(task) for task in one.tasks},
        "flips": flips,
    }


def _contrast(one: Contrast) -> dict[str, Any]:
    names = ("difference", "interval", "discordant", "p", "p_holm", "test", "detectable")
    return {name: getattr(one, name) for name in names}


def _episodes(arms: Sequence[Outcomes], tasks: Sequence[str]) -> dict[str, Any]:
    """Columns of all episodes, arm after arm; an error is a number into ``errors``."""
    every = [(number, one) for number, arm in enumerate(arms) for one in arm.episodes]
    errors = {text: number for number, text in enumerate(dict.fromkeys(one.error for _, one in every if one.error))}
    task_number = {task: number for number, task in enumerate(tasks)}
    return {
        "arm": [number for number, _ in every],
        "task": [task_number[one.task] for _, one in every],
        "episode": [one.episode for _, one in every],
        "repeat": [one.repeat for _, one in every],
        "success": [int(one.success) for _, one in every],
        "error": [None if not one.error else errors[one.error] for _, one in every],
        "errors": [text[-ERROR:] for text in errors],
        "steps": [one.steps for _, one in every],
        "rounds": [one.rounds for _, one in every],
        "consensus": [_rounded(one.consensus) for _, one in every],
        "dispersion": [_rounded(one.dispersion) for _, one in every],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(float(value), 3)


def _order(places: Sequence[int], flipped: Sequence[int]) -> list[int]:
    """Episodes in the order in which their rounds are put into the page: flipped ones, then spread over all the others.

    >>> _order(range(8), [6, 2])
    [6, 2, 0, 4, 1, 5, 3, 7]
    """
    bits = max(1, (len(places) - 1).bit_length())
    spread = sorted(range(len(places)), key=lambda number: int(f"{number:0{bits}b}"[::-1], 2))
    return list(dict.fromkeys([*flipped, *(places[number] for number in spread)]))


def _films(
    keys: Sequence[tuple[str | None, EpisodeKey]], places: Sequence[int], count: int
) -> tuple[dict[int, Any], list[str]]:
    """Films by place of the episode, and why there are fewer."""
    if not count:
        return {}, []
    if not places:
        return {}, ["no film: the runs hold no rounds, whose actions could be replayed"]
    from keystone_robotics.report.page.films import film_episodes  # needs the extra eval

    return film_episodes(((place, source, key) for place in places for source, key in [keys[place]] if source), count)


def _rounds(
    keys: Sequence[tuple[str | None, EpisodeKey]], order: Sequence[int], budget: int, alarm: Calibration | None
) -> tuple[dict[int, Any], list[int]]:
    """Packed rounds by place of the episode, and the places of those that do not fit into the budget.

    They are as fine as the budget allows for all episodes; with the coarsest, the last are left out.
    """
    with ExitStack() as stack:
        stores: dict[str, Store] = {}
        stored: list[tuple[int, Store, EpisodeKey]] = []
        for place in order:
            source, key = keys[place]
            if source is None:
                continue
            if source not in stores:
                stores[source] = stack.enter_context(Store(Path(source)))
            if stores[source].has_rounds(key):
                stored.append((place, stores[source], key))
        scores: dict[int, Series] = {}
        for levels in LEVELS:
            found, complete = _fit(stored, levels, budget, alarm, scores)
            if complete:
                return found, []
    shown = list(found)
    rest = [place for place, _, _ in stored]
    return found, rest[rest.index(shown[-1]) + 1 :] if shown else rest


def _fit(
    stored: Sequence[tuple[int, Store, EpisodeKey]],
    levels: int,
    budget: int,
    alarm: Calibration | None,
    scores: dict[int, Series],
) -> tuple[dict[int, Any], bool]:
    """Packed rounds until the budget is used up, and whether it suffices; ``scores`` keeps the alarm's for the next time."""
    found: dict[int, Any] = {}
    used = 0
    for place, store, key in stored:
        rounds = store.rounds(key)
        if place not in scores:
            scores[place] = _scores(alarm, rounds)
        packed = pack_rounds(rounds, scores[place], levels)
        if packed is None:
            continue
        used += len(json.dumps(packed, separators=(",", ":")))
        if used > budget:
            return found, False
        found[place] = packed
    return found, True


def _scores(alarm: Calibration | None, rounds: Sequence[RoundRecord]) -> Series:
    """The alarm's, except of one candidate, which cannot disagree."""
    return alarm_series(alarm, rounds) if alarm is not None and rounds and len(rounds[0].candidates) > 1 else []


def _keys(runs: Runs) -> Iterator[tuple[str | None, EpisodeKey]]:
    """For each episode the folder of its store, None for other tools' results, and its key there."""
    for arm, name in zip(runs.arms, runs.names, strict=True):
        for one in arm.episodes:
            yield arm.source if arm.tool == "keystone" else None, (name, one.task, one.repeat, one.episode)
