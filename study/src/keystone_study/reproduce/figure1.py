"""Figure 1b, and its claim tested over many rounds: do candidates near the medoid succeed more often than distant ones?"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from keystone_robotics.evaluate.branch import Brancher, Branches
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import evaluate, versions
from keystone_robotics.files import atomic_write, write_file
from keystone_robotics.records import RoundRecord, Store
from keystone_robotics.report.style import save
from keystone_robotics.tables import as_markdown
from keystone_study.report.demo import separation
from keystone_study.report.outcomes import draw_by_rank, draw_outcomes
from keystone_study.reproduce.workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORKLOAD, ARM = "metaworld-mixed", "keystone:k=16"
STATES = 2  #: initial states of each task
MOMENTS = (0.0, 0.25, 0.5)  #: at which fractions of its rounds an episode is branched
GROUPS = 4  #: the candidates of a round, by distance to the medoid, in this many groups of equal size


@dataclass(frozen=True)
class BranchedRound:
    """One round and the outcome of each of its candidates.

    Attributes:
        task: its name.
        episode: number of the initial state.
        number: of the round.
        chosen: by the paper's rule.
        order: (K,) candidates by their distance to the medoid, the nearest first.
        success: (K,) whether the episode succeeded after each.
        apart: share of the variance that lies between those that succeeded and those that failed.
    """

    task: str
    episode: int
    number: int
    chosen: int
    order: tuple[int, ...]
    success: tuple[bool, ...]
    apart: float

    @property
    def title(self) -> str:
        return f"{self.task}, initial state {self.episode}: round {self.number}"


def draw_figure1(out: Path, executor: Executor, console: Console, quick: bool) -> list[Path]:
    """Branch rounds of many episodes; draw the one that separates success and failure best, and count over all rounds.

    Writes ``figure1.png``, ``.svg``, ``figure1-ranks.png``, ``.svg``, ``figure1.json`` and ``figure1.md``. Every branched round
    is stored in ``runs/figure1``, so an interruption loses at most one.
    """
    workload = WORKLOADS[WORKLOAD].quick() if quick else replace(WORKLOADS[WORKLOAD], states=STATES)
    settings = replace(workload.settings((ARM,), repeats=1), keep_rounds=True)
    folder = out / "runs" / "figure1"
    evaluate(settings, folder, executor, console)
    found = list(branch_all(settings, folder, console))
    shown = max((one for one, _, _ in found), key=lambda one: one.apart)
    drawn = next(_as_numbers(record, branches) for one, record, branches in found if one is shown)
    rounds = [one for one, _, _ in found]
    paths = save(draw_by_rank(success_by_group(rounds).mean(0), chosen_rate(rounds), len(rounds)), out, "figure1-ranks")
    command = "keystone reproduce figure1" + (" --quick" if quick else "")
    said = {
        "command": command, "versions": versions(), "shown": shown.title, "drawn": drawn,
        "rounds": [asdict(one) for one in rounds],
    }  # fmt: skip
    paths += save(draw_shown(said), out, "figure1")
    write_file(out / "figure1.json", json.dumps(said, indent=2) + "\n")
    write_file(out / "figure1.md", page(rounds, shown, command))
    return paths


def _as_numbers(record: RoundRecord, branches: Branches) -> dict[str, Any]:
    """What `draw_shown` draws of a round, for JSON."""
    return {
        "candidates": record.candidates.round(5).tolist(),
        "labels": record.labels.tolist(),
        "index": record.index,
        "success": branches.success.tolist(),
        "paths": [path.round(5).tolist() for path in branches.paths],
    }


def draw_shown(said: dict[str, Any]) -> Figure:
    """The picture, from what is in ``figure1.json``."""
    drawn = said["drawn"]
    candidates, labels = np.array(drawn["candidates"], np.float32), np.array(drawn["labels"])
    record = RoundRecord(0, 0, candidates, labels, drawn["index"], False, 0.0, 0.0, candidates[0])
    success, paths = np.array(drawn["success"]), [np.array(path, np.float32) for path in drawn["paths"]]
    return draw_outcomes(record, Branches(success, np.zeros(len(success), np.int64), paths), said["shown"])


def branch_all(
    settings: EvaluationConfig, folder: Path, console: Console
) -> Iterator[tuple[BranchedRound, RoundRecord, Branches]]:
    """Some rounds of every episode, each candidate executed to the end; an episode that ended with an error has none."""
    arm = settings.arms[0]
    with Store(folder) as store:
        for task in settings.tasks:
            with contextlib.ExitStack() as stack:
                brancher: Brancher | None = None  # created if a round is left to branch
                for episode in track(range(settings.episodes), f"branching {task}", console=console):
                    rounds = store.rounds((str(arm), task, 0, episode))
                    for number in sorted({int(moment * len(rounds)) for moment in MOMENTS}) if rounds else ():
                        path = folder / "branches" / f"{task}-{episode}-{number}.npz"
                        if not path.exists():
                            brancher = brancher or stack.enter_context(Brancher(settings, arm, task))
                            _save_branches(path, brancher.branch(0, episode, rounds, number))
                        branches = _load_branches(path)
                        yield _summarise(task, episode, rounds[number], branches), rounds[number], branches


def _summarise(task: str, episode: int, record: RoundRecord, branches: Branches) -> BranchedRound:
    steps = max(1, len(record.actions))
    flat = record.candidates[:, :steps].reshape(len(record.candidates), -1).astype(np.float64)
    distances = np.linalg.norm(flat[:, None] - flat[None], axis=2)
    to_medoid = distances[distances.sum(1).argmin()]
    return BranchedRound(
        task=task,
        episode=episode,
        number=record.number,
        chosen=int(record.index),
        order=tuple(int(index) for index in to_medoid.argsort(kind="stable")),
        success=tuple(bool(one) for one in branches.success),
        apart=separation(record.candidates, branches.success),
    )


def success_by_group(rounds: Sequence[BranchedRound]) -> NDArray[np.float64]:
    """(states, GROUPS) success rate of candidates by distance to the medoid, nearest group first, for each initial state."""
    groups = np.array(
        [[np.mean(part) for part in np.array_split(np.array(one.success)[list(one.order)], GROUPS)] for one in rounds]
    )
    states = np.unique([f"{one.task} {one.episode}" for one in rounds], return_inverse=True)[1]
    return np.array([groups[states == state].mean(0) for state in range(states.max() + 1)])


def inner_minus_outer(groups: NDArray[np.float64]) -> tuple[float, tuple[float, float]]:
    """Success rate of the nearest group minus that of the farthest, and Student's 95 % interval over initial states.

    >>> inner_minus_outer(np.array([[1.0, 0.0], [1.0, 0.5], [0.5, 0.5]]))[0]
    0.5
    """
    from scipy import stats

    apart = groups[:, 0] - groups[:, -1]
    error = apart.std(ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else float("nan")
    reach = float(stats.t.ppf(0.975, max(len(apart) - 1, 1))) * error
    return float(apart.mean()), (float(apart.mean() - reach), float(apart.mean() + reach))


def chosen_rate(rounds: Sequence[BranchedRound]) -> float:
    """Success rate of the paper's selection."""
    return float(np.mean([one.success[one.chosen] for one in rounds]))


def page(rounds: Sequence[BranchedRound], shown: BranchedRound, command: str) -> str:
    """The results as Markdown."""
    groups = success_by_group(rounds)
    difference, (low, high) = inner_minus_outer(groups)
    episodes = len({(one.task, one.episode) for one in rounds})
    torn = [one for one in rounds if 0 < sum(one.success) < len(one.success)]
    size = len(rounds[0].success) // GROUPS
    rows = [["candidates, by distance to the medoid", "then succeeded, %"]]
    rows += [
        [f"{size * number + 1} to {size * (number + 1)}", f"{100 * rate:.1f}"]
        for number, rate in enumerate(groups.mean(0))
    ]
    rows.append(["chosen by the paper's rule", f"{100 * chosen_rate(rounds):.1f}"])
    rows.append(["all (one sample at random)", f"{100 * np.mean([one.success for one in rounds]):.1f}"])
    return (
        f"# Figure 1b: what becomes of each candidate\n\nMade by `{command}`. {len(rounds)} rounds of {episodes} episodes were "
        f"branched: each of the {len(rounds[0].success)} candidates "
        "was executed from the same state of the simulator, and the policy went on with one sample per round. In "
        f"{len(torn)} rounds some succeeded and some failed. Shown: {shown.title}, of all the one in which success and "
        f"failure lie farthest apart ({100 * shown.apart:.0f} % of the variance).\n\n{as_markdown(rows)}\n"
        f"\nThe innermost group succeeded {100 * difference:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}] more often than "
        "the outermost: the mean over initial states of the difference within them, with Student's 95 % interval.\n"
    )


def _save_branches(path: Path, branches: Branches) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = [len(one) for one in branches.paths]
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.savez(
            file, success=branches.success, steps=branches.steps, paths=np.concatenate(branches.paths), lengths=lengths
        )


def _load_branches(path: Path) -> Branches:
    with np.load(path) as stored:
        parts = np.split(stored["paths"], np.cumsum(stored["lengths"])[:-1])
        return Branches(success=stored["success"], steps=stored["steps"], paths=parts)
