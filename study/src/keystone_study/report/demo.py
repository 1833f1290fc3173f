"""The page of ``keystone demo``: the results of an evaluation, one round and one episode of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.compare.comparison import compare
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.compare.summary import ArmSummary, summary_rows
from keystone_robotics.environments import find_benchmark
from keystone_robotics.evaluate.branch import Brancher
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.records import EpisodeRecord, RoundRecord, Store
from keystone_robotics.report.style import save
from keystone_study.report.film import NoPicture, film_episode, save_film, save_strip
from keystone_study.report.outcomes import draw_outcomes
from keystone_study.report.page import Page

EVERY = 5  #: steps between two frames of the film
TRIED = 5  #: rounds that are branched; the one in which the selection mattered most is shown


@dataclass(frozen=True)
class Pair:
    """The same episode with one sample per round and with KeyStone."""

    one: EpisodeRecord
    many: EpisodeRecord

    def __str__(self) -> str:
        return f"{self.one.task}, initial state {self.one.episode}"


def pairs(rows: Sequence[EpisodeRecord], one: str, many: str) -> list[Pair]:
    """Episodes of two arms with the same initial state and noise."""
    others = {(row.task, row.repeat, row.episode): row for row in rows if row.arm == many}
    both = [(row, others.get((row.task, row.repeat, row.episode))) for row in rows if row.arm == one]
    return [Pair(row, other) for row, other in both if other and other.initial_state == row.initial_state]


def write_page(
    settings: EvaluationConfig, folder: Path, summaries: Sequence[ArmSummary], about: str, command: str
) -> tuple[Path, list[str]]:
    """Write ``index.html`` and its pictures into the folder of a run.

    Args:
        settings: of the run; its first arm is one sample per round, its last the paper's rule, of which the pictures are.
        folder: of the run.
        summaries: of its arms.
        about: a sentence about the policy.
        command: evaluates the reader's own policy.

    Returns:
        The path of the page, and what could not be rendered.
    """
    problems: list[str] = []
    with Store(folder) as store:
        rows = [row for row in store.episodes() if settings.asks_for(row.task, row.repeat, row.episode)]
        both = pairs(rows, str(settings.arms[0]), str(settings.arms[-1]))
        won = [pair for pair in both if pair.many.success and not pair.one.success]
        lost = [pair for pair in both if pair.one.success and not pair.many.success]
        page = Page("Success: " + ", ".join(f"{100 * one.rate:.0f} % with {one.arm}" for one in summaries))
        page.text(
            f"{len(settings.tasks)} tasks, {settings.episodes} initial states each. All arms begin in the same states, and "
            f"the one sample of K = 1 is among the candidates of K = 16. {about}",
            quiet=True,
        )
        page.table(summary_rows(summaries))
        for sentence in verdicts(rows, settings):
            page.text(sentence)
        page.text(
            f"Of {len(both)} episodes, {len(won)} failed with one sample and succeeded with {settings.arms[-1]}; "
            f"{len(lost)} the other way round; in the rest both arms agree. Intervals are 95 %, with initial states as units."
        )
        page.heading("By task")
        page.table(_by_task(summaries))
        for pair in won[:1] or lost[:1]:
            rounds = store.rounds(pair.many.key)
            if rounds:
                _add_round(page, settings, folder, pair, rounds)
            alone = store.rounds(pair.one.key)
            try:
                _add_film(page, settings, folder, pair, alone, rounds, len(won) if won else len(lost))
            except NoPicture as error:
                problems.append(str(error))
                page.text(str(error), quiet=True)
    page.heading("Do this with your policy")
    page.code(command)
    path = folder / "index.html"
    path.write_text(page.html())
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


def _by_task(summaries: Sequence[ArmSummary]) -> list[list[str]]:
    tasks = list(summaries[0].by_task)
    rows = [[task, *(f"{100 * one.by_task[task]:.0f} %" for one in summaries)] for task in tasks]
    return [["task", *(one.arm for one in summaries)], *rows]


def _add_round(page: Page, settings: EvaluationConfig, folder: Path, pair: Pair, rounds: Sequence[RoundRecord]) -> None:
    """Branch some rounds, and show the one in which the outcome depends most on the candidate's position."""
    row = pair.many
    numbers = np.unique(np.linspace(0, len(rounds) - 1, TRIED).round().astype(int)).tolist()
    with Brancher(settings, settings.arms[-1], row.task) as brancher:
        tried = [(number, brancher.branch(row.repeat, row.episode, rounds, number)) for number in numbers]
    number, branches = max(tried, key=lambda one: separation(rounds[one[0]].candidates, one[1].success))
    record = rounds[number]
    figure = draw_outcomes(record, branches, f"{pair}: round {number}")
    png, _ = save(figure, folder, "round")
    page.heading("One round, and the outcome of each candidate")
    page.image(png, "The candidates of one round as points, coloured by outcome, and their paths")
    page.text(
        f"Each of the {len(branches.success)} candidates was executed from the same simulator state, then the policy continued "
        f"with one sample per round. {int(branches.success.sum())} of them led to success; the selected one "
        f"{'did' if branches.success[record.index] else 'did not'}. Of {len(tried)} branched rounds this is the one in which "
        "successes and failures are farthest apart."
    )


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


def _add_film(
    page: Page,
    settings: EvaluationConfig,
    folder: Path,
    pair: Pair,
    alone: Sequence[RoundRecord],
    rounds: Sequence[RoundRecord],
    such: int,
) -> None:
    benchmark = find_benchmark(settings.env)
    films = [
        film_episode(
            benchmark,
            pair.one.task,
            settings.initial_seed(pair.one.episode),
            np.concatenate([record.actions for record in kept]),
            EVERY,
        )
        for kept in (alone, rounds)
    ]
    captions = [
        f"{name}: {f'done in {row.steps} steps' if row.success else 'failed'}"
        for name, row in (("K = 1", pair.one), (f"KeyStone, K = {settings.arms[-1].k}", pair.many))
    ]
    save_film(folder / "episode.gif", films, captions)
    save_strip(folder / "episode.png", films, captions)
    page.heading(f"The same episode with both arms: {pair}")
    page.image(folder / "episode.gif", "; ".join(captions))
    page.text(f"The first of {such} episodes in which the two arms differ in this direction.", quiet=True)
