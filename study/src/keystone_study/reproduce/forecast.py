"""``keystone reproduce forecast``: does what a policy's candidates look like tell how much K candidates will add?

Predictors are measured on rounds at frames of demonstrations, without an episode of the policy. They are compared with the gain
of the best arm with K = 16 over the best free change, from the finished workloads of the main study.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from keystone_robotics.attachment import attach, detach
from keystone_robotics.environments.benchmark import Observation
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import versions
from keystone_robotics.files import write_file
from keystone_robotics.handle import RoundEvent
from keystone_robotics.policies import load_agent
from keystone_robotics.policies.agent import Agent
from keystone_robotics.policies.load import RECORD, find_policy
from keystone_robotics.tables import as_markdown
from keystone_study.reproduce.main import CANDIDATES, FREE, MainResult
from keystone_study.reproduce.page import file_and_command
from keystone_study.reproduce.workloads import MAIN_WORKLOADS, WORKLOADS, Workload
from keystone_study.train.experts import find_expert

ROUNDS = 50  #: frames of each policy
K = 16
FEW = 2  #: denoising steps of the comparison with few
ENOUGH = 16  #: policies that a forecast needs
USEFUL = 0.6  #: rank correlation on the testing half from which a predictor becomes a forecast
RESAMPLES = 4000  #: of the bootstrap
SPLIT = 0.8  #: share of the variance between two groups from which a round counts as having two modes
DEMONSTRATIONS = 900  #: number of the first attempt: training ends long before

Candidates = NDArray[np.float64]


@dataclass(frozen=True)
class PolicyCandidates:
    """The candidates of all rounds, (N, K, T, D), each dimension divided by its standard deviation, executed steps only.

    Attributes:
        own: with the policy's own number of denoising steps.
        few: with `FEW`, from the same noise.
    """

    own: Candidates
    few: Candidates


def dispersion(candidates: PolicyCandidates) -> float:
    """Mean distance of a candidate to the mean of its round, root mean square over steps and dimensions."""
    apart = candidates.own - candidates.own.mean(1, keepdims=True)
    return float(_rms(apart).mean())


def two_modes(candidates: PolicyCandidates) -> float:
    """Share of rounds whose candidates fall into two groups along their first principal axis."""
    return float(np.mean([_between(round) > SPLIT for round in candidates.own]))


def mean_to_medoid(candidates: PolicyCandidates) -> float:
    """Distance between the mean and the candidate in the middle, relative to the dispersion."""
    flat = candidates.own.reshape(*candidates.own.shape[:2], -1)
    distances = np.linalg.norm(flat[:, :, None] - flat[:, None], axis=-1)
    medoid = candidates.own[np.arange(len(flat)), distances.sum(2).argmin(1)]
    return float(_rms(candidates.own.mean(1) - medoid).mean() / max(dispersion(candidates), 1e-9))


def few_steps(candidates: PolicyCandidates) -> float:
    """How far the chunk of one noise moves with few steps, relative to the dispersion."""
    return float(_rms(candidates.own - candidates.few).mean() / max(dispersion(candidates), 1e-9))


def few_steps_dispersion(candidates: PolicyCandidates) -> float:
    """Dispersion that is left with few steps, as a share."""
    apart = candidates.few - candidates.few.mean(1, keepdims=True)
    return float(_rms(apart).mean() / max(dispersion(candidates), 1e-9))


PREDICTORS: dict[str, Callable[[PolicyCandidates], float]] = {
    "dispersion": dispersion,
    "share of rounds with two modes": two_modes,
    "mean to medoid": mean_to_medoid,
    "change from own to two steps": few_steps,
    "dispersion left at two steps": few_steps_dispersion,
}


def _rms(values: Candidates) -> Candidates:
    """Over the last two dimensions."""
    root: Candidates = np.sqrt(np.square(values).mean((-2, -1)))
    return root


def _between(candidates: Candidates) -> float:
    """Share of the variance along the first principal axis of (K, T, D) that lies between two groups; 0.64 for one Gaussian."""
    flat = candidates.reshape(len(candidates), -1)
    centred = flat - flat.mean(0)
    line = np.sort(np.linalg.svd(centred, full_matrices=False)[0][:, 0])
    left, counts = np.cumsum(line)[:-1], np.arange(1, len(line))
    between = np.square(left) * (1 / counts + 1 / (len(line) - counts))
    return float(between.max() / max(np.square(line).sum(), 1e-12))


def frames(policy: str, rounds: int = ROUNDS) -> list[tuple[Observation, str]]:
    """Frames of demonstrations of the policy's own expert that it was not trained on, with their tasks, evenly spread."""
    folder = find_policy(policy)
    assert folder is not None
    record = json.loads((folder / RECORD).read_text())
    expert, tasks = find_expert(record["benchmark"]), record["tasks"]
    attempts = [(task, DEMONSTRATIONS + number) for number in range(-(-8 // len(tasks))) for task in tasks]
    found: list[tuple[Observation, str]] = []
    for index, (task, attempt) in enumerate(attempts):
        count = (rounds * (index + 1)) // len(attempts) - (rounds * index) // len(attempts)
        if count == 0:
            continue
        made = expert.demonstrate(task, record["regime"], record["seed"], attempt)
        at = ((np.arange(count) + 0.5) * len(made.actions) / count).astype(int)
        seen = {"agent_pos": made.agent_pos[at], "environment_state": made.environment_state[at]}
        if expert.image:
            seen["pixels"] = expert.draw(made.environment_state[at])
        found += [({key: values[row] for key, values in seen.items()}, task) for row in range(count)]
    return found


def draw(agent: Agent, shown: Sequence[tuple[Observation, str]]) -> PolicyCandidates:
    """Candidates of one round for each frame."""
    observations, tasks = [[one] for one, _ in shown], [task for _, task in shown]
    own, few = (_candidates(agent, observations, tasks, steps) for steps in (None, FEW))
    scale = np.maximum(own.std((0, 1, 2)), 1e-9)
    executed = slice(agent.execute)
    return PolicyCandidates(own[:, :, executed] / scale, few[:, :, executed] / scale)


def _candidates(agent: Agent, observations: list[list[Observation]], tasks: list[str], steps: int | None) -> Candidates:
    seen: list[RoundEvent] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        handle = attach(agent.policy, rule="core-mean", k=K, steps=steps, seed=0)
        try:
            handle.subscribe(seen.append)
            agent.plan(observations, tasks)
        finally:
            detach(agent.policy)
    (event,) = seen
    found: Candidates = event.candidates.double().cpu().numpy()
    return found


def measure(workload: Workload, path: Path) -> dict[str, float]:
    """All predictors of a workload's policy; measured once and stored in ``path``."""
    if path.exists():
        stored: dict[str, float] = json.loads(path.read_text())
        if stored.keys() == PREDICTORS.keys():
            return stored
    candidates = draw(load_agent(workload.policy), frames(workload.policy))
    found = {name: round(predictor(candidates), 4) for name, predictor in PREDICTORS.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(found, indent=1) + "\n")
    return found


def gain(result: MainResult) -> float:
    """What the best arm with K = 16 adds to the best free change, both chosen on other states."""
    difference = result.difference(result.choices[CANDIDATES].arm, result.choices[FREE].arm)
    return 0.0 if difference is None else difference.value


def is_for_fitting(workload: str) -> bool:
    """Every other workload of the main study, in its order: of a regime that was trained twice, the first policy.

    >>> is_for_fitting("metaworld-mixed"), is_for_fitting("metaworld-mixed-again")
    (True, False)
    """
    return MAIN_WORKLOADS.index(workload) % 2 == 0


@dataclass(frozen=True)
class Correlation:
    """Rank correlation of one predictor with the gain.

    Attributes:
        predictor: its name.
        fitting: on the policies for fitting.
        testing: on the others ...
        interval: ... with a bootstrap interval, 95 %.
    """

    predictor: str
    fitting: float
    testing: float
    interval: tuple[float, float]


def correlate(rows: dict[str, dict[str, float]], gains: dict[str, float]) -> list[Correlation]:
    """Of every predictor, the strongest on the policies for fitting first."""
    groups = [[name for name in rows if is_for_fitting(name) == fitting] for fitting in (True, False)]
    found = []
    for predictor in PREDICTORS:
        values = [np.array([[rows[name][predictor], gains[name]] for name in group]) for group in groups]
        random = np.random.default_rng(0)
        picks = random.integers(len(values[1]), size=(RESAMPLES, len(values[1])))
        resampled = [_spearman(values[1][pick]) for pick in picks]
        low, high = np.nanpercentile(resampled, [2.5, 97.5])
        found.append(Correlation(predictor, _spearman(values[0]), _spearman(values[1]), (float(low), float(high))))
    return sorted(found, key=lambda one: -abs(one.fitting))


def _spearman(pairs: NDArray[np.float64]) -> float:
    """Rank correlation of (N, 2); 0 where one of them does not vary."""
    from scipy import stats

    if len(pairs) < 2:
        return 0.0
    ranks = np.stack([stats.rankdata(column) for column in pairs.T])
    spread = ranks.std(1)
    return 0.0 if spread.min() == 0 else float(np.corrcoef(ranks)[0, 1])


def verdict(correlations: Sequence[Correlation], policies: int) -> str:
    """One sentence: whether the predictor that was best for fitting is a forecast."""
    best = correlations[0]
    if policies < ENOUGH:
        return f"{policies} policies are too few for a forecast: expected {ENOUGH} or more."
    same_sign = best.fitting * best.testing > 0
    if same_sign and abs(best.testing) >= USEFUL and np.prod(best.interval) > 0:
        return f"`{best.predictor}` forecasts the gain: {best.testing:+.2f} on the policies for testing."
    return "No predictor forecasts the gain: the best for fitting does not hold on the policies for testing."


def caveat(rows: Iterable[str], correlations: Sequence[Correlation]) -> str:
    """What the split and the number of policies leave open."""
    policies = sum(not is_for_fitting(name) for name in rows)
    widths = sorted(one.interval[1] - one.interval[0] for one in correlations)
    return (
        "The split was fixed beforehand. It puts a policy and the one that was trained again in the same way into different "
        f"halves, so the halves are not independent. There are {policies} policies for testing: the intervals are "
        f"{widths[0]:.1f} to {widths[-1]:.1f} wide, of at most 2, and would miss all but a strong relation."
    )


def reproduce_forecast(
    out: Path, executor: Executor, console: Console, workloads: Sequence[str] = MAIN_WORKLOADS, quick: bool = False
) -> Path:
    """Write ``forecast.json`` and ``forecast.md`` from the workloads whose results are in ``out/main``."""
    results = {}
    for name in workloads:
        path = out / "main" / f"{name}.json"
        if path.exists():
            results[name] = MainResult.from_dict(json.loads(path.read_text()), WORKLOADS[name])
        else:
            console.print(f"{name}: no {path}; `keystone reproduce main --workloads {name}` makes it")
    rows = {name: measure(WORKLOADS[name], out / "forecast" / f"{name}.json") for name in results}
    gains = {name: gain(result) for name, result in results.items()}
    correlations = correlate(rows, gains)
    said = verdict(correlations, len(results))
    name, command = file_and_command("forecast", workloads, tuple(workloads) != MAIN_WORKLOADS, quick)
    found = {
        "command": command,
        "versions": versions(),
        "predictors": rows,
        "gains": gains,
        "correlations": [asdict(one) for one in correlations],
        "verdict": said,
    }
    write_file(out / f"{name}.json", json.dumps(found, indent=1) + "\n")
    write_file(out / f"{name}.md", page(command, rows, gains, correlations, said))
    return out / f"{name}.md"


def correlation_table(correlations: Sequence[Correlation]) -> list[list[str]]:
    """With a heading, for Markdown."""
    heading = ["predictor", "rank correlation, fitting", "testing", "95 %"]
    return [heading] + [
        [
            one.predictor,
            f"{one.fitting:+.2f}",
            f"{one.testing:+.2f}",
            f"[{one.interval[0]:+.2f}, {one.interval[1]:+.2f}]",
        ]
        for one in correlations
    ]


def page(
    command: str,
    rows: dict[str, dict[str, float]],
    gains: dict[str, float],
    correlations: Sequence[Correlation],
    said: str,
) -> str:
    """The results as Markdown."""
    about = (
        f"Made by `{command}`. Predictors were measured on {ROUNDS} rounds with K = {K} at frames of "
        "demonstrations that the policy was not trained on, without an episode. *Gain*: the best arm with K = 16 against the "
        "best free change, points, from the main study. Every other policy is for fitting, the others for testing."
    )
    second = [["policy", "for", "gain", *PREDICTORS]]
    second += [
        [name, "fitting" if is_for_fitting(name) else "testing", f"{100 * gains[name]:+.1f}"]
        + [f"{values[predictor]:.3f}" for predictor in PREDICTORS]
        for name, values in rows.items()
    ]
    parts = [
        "# When do K candidates help?",
        about,
        f"**{said}**",
        caveat(rows, correlations),
        as_markdown(correlation_table(correlations)),
        as_markdown(second),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
