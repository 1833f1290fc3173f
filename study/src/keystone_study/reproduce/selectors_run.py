"""``keystone reproduce selectors``: learned selectors and ensembles over time beside the rules of the product."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console

from keystone_robotics.compare.comparison import rate_of
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.files import write_file
from keystone_robotics.policies.load import find_policy
from keystone_robotics.spec import Spec
from keystone_robotics.tables import as_markdown
from keystone_study.policies.flow import load_flow
from keystone_study.reproduce.analysis import Difference, differences
from keystone_study.reproduce.grids import AS_IT_IS, PAPER
from keystone_study.reproduce.main import FREE, MainResult
from keystone_study.reproduce.page import Page, find_workloads
from keystone_study.reproduce.search import Contender
from keystone_study.reproduce.selectors import QUICK_SWEEPS, SWEEPS, RoundTime, Training, time_arms, train_scorers
from keystone_study.reproduce.tables import points
from keystone_study.reproduce.workloads import WORKLOADS, Workload

SELECTOR_WORKLOADS = ("metaworld-mixed", "metaworld-noisy", "pusht")
K = 16
FREE_TITLE = "the best free change"

ABOUT = (
    f"All arms on the same initial states. *TACO* and *value* (in the manner of V-GPS) execute the candidate of {K} with the "
    "highest score; TACO is trained on the demonstrations of the policy, the value function also on failed rollouts of it from "
    "other initial states, each for as many iterations as the policy. The *temporal ensemble* (ACT) and the *adaptive "
    "ensemble* (CogACT) draw one chunk in every step and average what the last chunks planned for this step. *Best free "
    "change*: with one sample, chosen by the main study on other states. *Training*: CPU time on one thread, without that of "
    "demonstrations and rollouts. *Rounds*: of an episode, mean. *× round*, *× step*: CPU time of a round at batch size 1, and "
    "of an executed step, relative to K = 1. Δ in points with paired 95 % intervals; **bold**: clear after Holm's correction."
)
PAGE = Page("selectors", "Learned selectors and ensembles over time", ABOUT, SELECTOR_WORKLOADS)


@dataclass(frozen=True)
class SelectorRow:
    """One arm on one workload.

    Attributes:
        title: for readers.
        arm: of the product, or a method of the study with its options.
        rate: share of successes, mean over tasks.
        episodes: number of episodes.
        rounds: of an episode, mean.
        to_first: difference to K = 1; None for itself.
        to_free: difference to the best free change; None for itself, and where the main study has no result.
        training: of a learned selector.
        time: of a round and of a step.
    """

    title: str
    arm: str
    rate: float
    episodes: int
    rounds: float
    to_first: Difference | None
    to_free: Difference | None
    training: Training | None
    time: RoundTime

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> SelectorRow:
        """What `dataclasses.asdict` gave, after JSON."""
        made = {"to_first": Difference, "to_free": Difference, "training": Training, "time": RoundTime}
        return cls(
            **{
                name: made[name](**value) if name in made and value is not None else value
                for name, value in stored.items()
            }
        )


def reproduce_selectors(
    out: Path, executor: Executor, console: Console, workloads: Sequence[str] = SELECTOR_WORKLOADS, quick: bool = False
) -> Path:
    """Train, evaluate, and write ``selectors.json`` and ``selectors.md``, or ``selectors-WORKLOADS…`` for some.

    Interrupted, the same call resumes. The best free change is that of ``out/main/WORKLOAD.json``, if there is one.
    """
    chosen = find_workloads(workloads, quick)
    results = {one.name: run_workload(one, out, executor, console, quick) for one in chosen}
    parts = [
        f"## {WORKLOADS[one].title}\n\n{rows[0].episodes} episodes an arm.\n\n{as_markdown(table(rows))}"
        for one, rows in results.items()
    ]
    return PAGE.write(out, workloads, quick, {"workloads": results}, parts)


def run_workload(workload: Workload, out: Path, executor: Executor, console: Console, quick: bool) -> list[SelectorRow]:
    """Train the scorers, roll out all arms on the reported states, time their rounds."""
    folder = (out / "runs" / workload.name / "selectors").resolve()
    trained = train_scorers(workload, out, folder, executor, console, quick)
    arms = arms_of(workload, folder, _free_change(workload, out))
    settings = workload.reported()
    outcomes = {title: _roll_out(one, settings, folder, executor, console) for title, one in arms.items()}
    times = _times(folder / "latency.json", settings, arms, QUICK_SWEEPS if quick else SWEEPS)
    first, *others = arms
    to_first = differences(outcomes, first, others)
    to_free = (
        differences(outcomes, FREE_TITLE, [one for one in arms if one != FREE_TITLE]) if FREE_TITLE in arms else {}
    )
    rows = []
    for title, one in arms.items():
        rate = rate_of(outcomes[title])
        rounds = sum(episode.rounds for episode in outcomes[title].episodes) / rate.episodes
        rows.append(
            SelectorRow(
                title=title,
                arm=one.name.partition("&scorer=")[0],  # without the folder
                rate=rate.rate,
                episodes=rate.episodes,
                rounds=rounds,
                to_first=to_first.get(title),
                to_free=to_free.get(title),
                training=trained.get(title.lower().partition(" ")[0]),
                time=times[title],
            )
        )
    return rows


def arms_of(workload: Workload, folder: Path, free: str | None) -> dict[str, Contender]:
    """The arms by title; the first is K = 1."""
    place = find_policy(workload.policy)
    assert place is not None  # train_scorers has loaded it
    steps = load_flow(place).config.integration_steps

    def scored(name: str) -> Contender:
        return Contender(name, method=f"scored?k={K}&steps={steps}&scorer={quote(str(folder / name), safe='')}")

    return {
        "K = 1": Contender("", AS_IT_IS),
        "TACO": scored("taco"),
        "value (V-GPS)": scored("value"),
        "KeyStone, the paper's rule": Contender("", PAPER),
        "`core-mean`": Contender("", f"core-mean:k={K}"),
        "`core-mean`, two steps": Contender("", f"core-mean:k={K},steps=2"),
        "temporal ensemble (ACT)": Contender("", method="temporal-ensemble?decay=0.01"),
        "adaptive ensemble (CogACT)": Contender("", method="adaptive-ensemble?alpha=0.1"),
        **({} if free is None else {FREE_TITLE: Contender("", free)}),
    }


def _free_change(workload: Workload, out: Path) -> str | None:
    """The arm, if the main study chose one."""
    path = out / "main" / f"{workload.name}.json"
    if not path.exists():
        return None
    return MainResult.from_dict(json.loads(path.read_text()), workload).choices[FREE].arm


def _roll_out(
    one: Contender, settings: EvaluationConfig, folder: Path, executor: Executor, console: Console
) -> Outcomes:
    """The episodes of an arm; what is stored is not rolled out again."""
    given = replace(
        settings, policy=one.policy(settings.policy), arms=(Spec.parse(one.arm),), allow_untrained_tasks=True
    )
    place = one.family or one.method.partition("?")[0] or "own"
    arm = str(given.arms[0])
    episodes = evaluate(given, folder / "reported" / place, executor, console).episodes
    return outcomes_of(one.name, [row for row in episodes if row.arm == arm])


def _times(path: Path, settings: EvaluationConfig, arms: Mapping[str, Contender], sweeps: int) -> dict[str, RoundTime]:
    """Measured once."""
    if path.exists():
        stored = {title: RoundTime(**one) for title, one in json.loads(path.read_text()).items()}
        if stored.keys() == arms.keys():
            return stored
    pairs = {title: (one.policy(settings.policy), one.arm) for title, one in arms.items()}
    measured = time_arms(settings, list(pairs.values()), sweeps)
    found = {title: measured[pair] for title, pair in pairs.items()}
    write_file(path, json.dumps(found, indent=1, default=asdict) + "\n")
    return found


def table(rows: Sequence[SelectorRow]) -> list[list[str]]:
    """One workload as a table, for the page of the results and for the documentation."""
    heading = [
        "arm", "success, %", "Δ to K = 1", "Δ to the best free change", "training", "rounds", "× round", "× step",
    ]  # fmt: skip
    return [
        heading,
        *(
            [
                row.title, f"{100 * row.rate:.1f}", points(row.to_first), points(row.to_free), training_cost(row.training),
                f"{row.rounds:.1f}", f"{row.time.round:.2f}", f"{row.time.step:.2f}",
            ]
            for row in rows
        ),
    ]  # fmt: skip


def training_cost(training: Training | None) -> str:
    """CPU time and data of a learned selector."""
    if training is None:
        return "–"
    more = f", {training.failures} failures of {training.rollouts} rollouts" if training.failures else ""
    return f"{training.cpu_seconds:.0f} s; {training.demonstrations} demonstrations{more}"
