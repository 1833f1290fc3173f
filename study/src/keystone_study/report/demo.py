"""The page of ``keystone demo``: the results of an evaluation, one round and one episode of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.compare.comparison import compare
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.environments import find_benchmark
from keystone_robotics.evaluate.branch import Brancher
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.records import EpisodeRecord, RoundRecord, Store
from keystone_robotics.report.page import write as report
from keystone_robotics.report.page.data import Section, page_data
from keystone_robotics.report.page.read import read_runs
from keystone_robotics.report.style import save
from keystone_robotics.spec import Spec
from keystone_study.report.film import NoPicture, film_episode, save_film, save_strip
from keystone_study.report.outcomes import draw_outcomes

EVERY = 5  #: steps between two frames of the film
TRIED = 5  #: rounds that are branched; the one in which the selection mattered most is shown


@dataclass(frozen=True)
class Pair:
    """The same episode with one sample per round and with KeyStone."""

    one: EpisodeRecord
    many: EpisodeRecord

    def __str__(self) -> str:
        return f"{self.one.task}, initial state {self.one.episode}"


def first_changed(rows: Sequence[EpisodeRecord], one: str, many: str) -> Pair | None:
    """The first initial state that only the second arm solves; if there is none, that only the first arm solves."""
    others = {(row.task, row.repeat, row.episode): row for row in rows if row.arm == many}
    both = [(row, others.get((row.task, row.repeat, row.episode))) for row in rows if row.arm == one]
    pairs = [Pair(row, other) for row, other in both if other and other.initial_state == row.initial_state]
    changed = [pair for pair in pairs if pair.one.success != pair.many.success]
    return min(changed, key=lambda pair: pair.one.success, default=None)


def write_page(settings: EvaluationConfig, folder: Path, about: str, command: str) -> tuple[Path, list[str]]:
    """Write ``index.html`` and its pictures into the folder of a run.

    Args:
        settings: of the run; its first arm is one sample per round, those with K candidates are what is recommended, of which
            the film is, and the paper's rule, of which one round is drawn.
        folder: of the run.
        about: a sentence about the policy.
        command: evaluates the reader's own policy.

    Returns:
        The path of the page, and what could not be rendered.
    """
    problems: list[str] = []
    one, (recommended, paper) = settings.arms[0], [arm for arm in settings.arms if arm.k != 1]
    with Store(folder) as store:
        rows = [row for row in store.episodes() if settings.asks_for(row.task, row.repeat, row.episode)]
        setting = (
            f"{len(settings.tasks)} tasks, {settings.episodes} initial states each. All arms begin in the same states, and "
            f"the noise of K = 1 is that of the first of the sixteen candidates. {about}"
        )
        sections = [Section("About this run", (setting, *verdicts(rows, settings)))]
        if pair := first_changed(rows, str(one), str(recommended)):
            try:
                sections.append(_film_section(settings, folder, pair, store))
            except NoPicture as error:
                problems.append(str(error))
                sections.append(Section(f"The same episode with both arms: {pair}", (str(error),)))
        if (pair := first_changed(rows, str(one), str(paper))) and (rounds := store.rounds(pair.many.key)):
            sections.append(_round_section(settings, paper, folder, pair, rounds))
    sections.append(Section("Do this with your policy", code=command))
    path = folder / "index.html"
    report.write_page(path, page_data(read_runs([folder]), sections=sections, films=1))
    return path, problems


def verdicts(rows: Sequence[EpisodeRecord], settings: EvaluationConfig) -> list[str]:
    """One sentence for each pair of an arm with several candidates and an arm with one."""
    outcomes = {str(arm): outcomes_of(str(arm), [row for row in rows if row.arm == str(arm)]) for arm in settings.arms}
    several, single = ([outcomes[str(arm)] for arm in settings.arms if (arm.k != 1) == more] for more in (True, False))
    return [
        f"{many.name} against {one.name}: {compare(one, many).verdict.replace('B is ', 'it is ')}."
        for many in several
        for one in single
    ]


def _round_section(
    settings: EvaluationConfig, arm: Spec, folder: Path, pair: Pair, rounds: Sequence[RoundRecord]
) -> Section:
    """Branch some rounds, and show the one in which the outcome depends most on the candidate's position."""
    row = pair.many
    numbers = np.unique(np.linspace(0, len(rounds) - 1, TRIED).round().astype(int)).tolist()
    with Brancher(settings, arm, row.task) as brancher:
        tried = [(number, brancher.branch(row.repeat, row.episode, rounds, number)) for number in numbers]
    number, branches = max(tried, key=lambda one: separation(rounds[one[0]].candidates, one[1].success))
    record = rounds[number]
    figure = draw_outcomes(record, branches, f"{pair}: round {number}")
    png, _ = save(figure, folder, "round")
    text = (
        f"With {arm}. Each of the {len(branches.success)} candidates was executed from the same simulator state, then the "
        f"policy continued with one sample per round. {int(branches.success.sum())} of them led to success; the selected one "
        f"{'did' if branches.success[record.index] else 'did not'}. Of {len(tried)} branched rounds this is the one in which "
        "successes and failures are farthest apart."
    )
    alt = "The candidates of one round as points, coloured by outcome, and their paths"
    return Section("One round, and the outcome of each candidate", (text,), png, alt)


def separation(candidates: NDArray[np.float32], success: NDArray[np.bool_]) -> float:
    """Fraction of the candidates' variance between those that led to success and those that led to failure.

    >>> chunks = np.array([0.0, 0.0, 1.0, 1.0], np.float32).reshape(4, 1, 1)
    >>> separation(chunks, np.array([True, True, False, False])), separation(chunks, np.array([True, False, True, False]))
    (1.0, 0.0)
    """
    flat = candidates.reshape(len(candidates), -1).astype(np.float64)
    total = ((flat - flat.mean(0)) ** 2).sum()
    groups = [group for group in (flat[success], flat[~success]) if len(group)]
    within = sum(((group - group.mean(0)) ** 2).sum() for group in groups)
    return float(1 - within / total) if total > 0 else 0.0


def _film_section(settings: EvaluationConfig, folder: Path, pair: Pair, store: Store) -> Section:
    benchmark = find_benchmark(settings.env)
    both = (pair.one, pair.many)
    films = [
        film_episode(
            benchmark,
            row.task,
            settings.initial_seed(row.episode),
            np.concatenate([record.actions for record in store.rounds(row.key)]),
            EVERY,
        )
        for row in both
    ]
    captions = [
        f"{name}: {f'done in {row.steps} steps' if row.success else 'failed'}"
        for name, row in zip(("K = 1", "KeyStone, K = 16"), both, strict=True)
    ]
    save_film(folder / "episode.gif", films, captions)
    save_strip(folder / "episode.png", films, captions, EVERY, [row.steps for row in both])
    return Section(
        f"The same episode with both arms: {pair}",
        (f"The first episode in which one of {pair.one.arm} and {pair.many.arm} succeeds and the other fails.",),
        folder / "episode.gif",
        "; ".join(captions),
    )
