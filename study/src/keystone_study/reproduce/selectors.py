"""The arms of ``keystone reproduce selectors``: how scorers are trained for a workload, and how rounds are timed."""

from __future__ import annotations

import functools
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from keystone_robotics.attachment import attach
from keystone_robotics.environments import find_benchmark
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.activity import Activity
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.rollout import LiveEpisode, Planner
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.evaluate.worker import one_thread
from keystone_robotics.files import write_file
from keystone_robotics.policies import load_agent
from keystone_robotics.policies.load import RECORD, find_policy
from keystone_robotics.records import Store
from keystone_robotics.spec import Spec
from keystone_study.policies.flow import load_flow
from keystone_study.reproduce.workloads import Workload
from keystone_study.scorers.store import SCORERS, save_scorer
from keystone_study.scorers.train import ScorerLearner, train_scorer
from keystone_study.train.collect import collect
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.experts import find_expert

#: Seed of the initial states and noise of the rollouts that the value function learns from.
ROLLOUT_SEED = 22
QUICK_DEMONSTRATIONS, QUICK_ITERATIONS = 1, 20
SWEEPS, QUICK_SWEEPS = 50, 3  #: rounds of each arm that are timed


@dataclass(frozen=True)
class Training:
    """How a scorer was trained.

    Attributes:
        cpu_seconds: of the training itself, on one thread.
        demonstrations: number, those of the policy.
        failures: number of failed rollouts.
        rollouts: number of rollouts, of which the failed ones are used.
        examples: steps of all of them.
        iterations: of the optimiser, as many as the policy's own training had.
    """

    cpu_seconds: float
    demonstrations: int
    failures: int
    rollouts: int
    examples: int
    iterations: int


@dataclass(frozen=True)
class RoundTime:
    """CPU time at batch size 1, relative to the first arm.

    Attributes:
        round: of one round.
        step: of one executed step: an arm that plans in every step has more rounds.
    """

    round: float
    step: float


def train_scorers(
    workload: Workload, out: Path, folder: Path, executor: Executor, console: Console, quick: bool
) -> dict[str, Training]:
    """Train what is not stored in ``folder`` yet: TACO on the demonstrations of the policy, the value function also on failed
    rollouts of it. Demonstrations and rollouts are stored as they are made.

    Args:
        workload: whose policy.
        out: of all workloads; demonstrations are in ``out/demos``.
        folder: of this workload; each scorer is in a subfolder of its name.
        executor: rolls out.
        console: for progress.
        quick: a test run.
    """
    found = {name: _trained(folder / name) for name in SCORERS}
    if all(found.values()):
        return {name: one for name, one in found.items() if one}
    place = find_policy(workload.policy)
    if place is None or not (place / RECORD).is_file():
        raise KeystoneError(f"{workload.policy}: expected a policy of `keystone train`, whose demonstrations are known")
    record = json.loads((place / RECORD).read_text())
    policy, expert = load_flow(place), find_expert(record["benchmark"])
    demonstrations: list[Demonstration] = []
    for task in workload.tasks if quick else record["tasks"]:
        console.print(f"{workload.name}: demonstrations of {task}")
        count = QUICK_DEMONSTRATIONS if quick else record["demonstrations"]
        made = collect(expert, task, record["regime"], record["seed"], count, out / "demos" / record["benchmark"])
        demonstrations += made.demonstrations
    settings = replace(
        workload.reported(),
        seed=ROLLOUT_SEED,
        arms=(Spec.parse("first"),),
        keep_rounds=True,
        allow_untrained_tasks=True,
    )
    torch.optim.AdamW([torch.zeros(1)])  # the first one imports torch's compiler for seconds: not a cost of training
    failures, rollouts = failed_rollouts(settings, folder / "rollouts", executor, console)
    for name in SCORERS:
        more = failures if name == "value" else []
        iterations = QUICK_ITERATIONS if quick else int(record["iterations"])
        work = folder / name / "work.pt"
        work.unlink(missing_ok=True)  # one that was interrupted begins again: its time is that of the whole
        begin = time.process_time()
        learner = ScorerLearner(name, policy, [*demonstrations, *more], expert, record["seed"])
        scorer, _ = train_scorer(learner, work, iterations, record["seed"])
        took = time.process_time() - begin
        save_scorer(scorer, folder / name)
        training = Training(
            round(took, 1), len(demonstrations), len(more), rollouts if more else 0, learner.examples, iterations
        )
        write_file(folder / name / "training.json", json.dumps(asdict(training)) + "\n")
        work.unlink()
        found[name] = training
    return {name: one for name, one in found.items() if one}


def _trained(folder: Path) -> Training | None:
    path = folder / "training.json"
    return Training(**json.loads(path.read_text())) if path.exists() else None


def failed_rollouts(
    settings: EvaluationConfig, folder: Path, executor: Executor, console: Console
) -> tuple[list[Demonstration], int]:
    """The rollouts that failed, with the state of every step, and the number of all.

    Runs store no states, but initial seeds and actions, which the simulator executes again.
    """
    episodes = evaluate(settings, folder, executor, console).episodes
    benchmark, found = find_benchmark(settings.env), list[Demonstration]()
    failed = [one for one in episodes if not one.success and one.error is None]
    with Store(folder) as store:
        for task in settings.tasks:
            env = benchmark.make(task)
            for one in failed:
                if one.task != task:
                    continue
                observation, _ = env.reset(seed=settings.initial_seed(one.episode))
                seen, actions = [], []
                for action in (action for kept in store.rounds(one.key) for action in kept.actions):
                    seen.append(observation)
                    actions.append(action)
                    observation, *_ = env.step(action)
                states = (np.stack([each[key] for each in seen]) for key in ("agent_pos", "environment_state"))
                agent_pos, environment_state = (each.astype(np.float32) for each in states)
                found.append(Demonstration(agent_pos, environment_state, np.stack(actions), False))
            env.close()
    return found, len(episodes)


def time_arms(
    settings: EvaluationConfig, arms: Sequence[tuple[str, str]], sweeps: int = SWEEPS
) -> dict[tuple[str, str], RoundTime]:
    """Time one round of each arm, in turn, on one thread.

    Args:
        settings: of the workload; the first initial state of its first task is used.
        arms: references of policies, and arms; the first is what the others are compared with.
        sweeps: rounds of each.
    """
    task = settings.tasks[0]
    env = find_benchmark(settings.env).make(task)
    observation, _ = env.reset(seed=settings.initial_seed(0))
    noise = functools.partial(settings.noise_seed, 0, task, 0)
    ready: dict[tuple[str, str], tuple[Planner, LiveEpisode]] = {}
    taken: dict[tuple[str, str], list[float]] = {arm: [] for arm in arms}
    with one_thread():
        for policy, text in arms:
            spec, agent = Spec.parse(text), load_agent(policy)
            agent.execute = spec.most_steps or agent.execute
            planner = Planner(agent, attach(agent.policy, spec), task, Activity())
            episode = LiveEpisode(0, env, 0, noise, history=deque([observation], maxlen=agent.history))
            for _ in range(agent.history):  # until an ensemble over time averages as many chunks as it ever does
                planner.time_round(episode)
                episode.history.append(dict(observation))
            ready[policy, text] = planner, episode
        for sweep in range(sweeps):
            turn = sweep % len(arms)
            for arm in (*arms[turn:], *arms[:turn]):
                planner, episode = ready[arm]
                planner.time_round(episode)  # as in a running loop: what it needs is in the caches
                taken[arm].append(planner.time_round(episode, time.thread_time))
    env.close()
    first = arms[0]
    executed = {arm: planner.agent.execute for arm, (planner, _) in ready.items()}
    ratios = {arm: float(np.median(np.divide(taken[arm], taken[first]))) for arm in arms}
    return {arm: RoundTime(ratios[arm], ratios[arm] * executed[first] / executed[arm]) for arm in arms}
