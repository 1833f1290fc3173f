"""Scores of states instead of candidates: RND and logpZO, small networks fitted to the states of successful episodes.

Half of the calibration's initial states fits them, and the other half calibrates: on the states that it was fitted to, a
network is less surprised than on fresh ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from keystone_robotics.environments import find_benchmark
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.files import atomic_write
from keystone_robotics.monitor.run import EpisodeScores, RunScores
from keystone_robotics.records import Store

#: A score: (n, D) states to (n,) numbers, higher is worse.
StateScore = Callable[[Tensor], Tensor]
FITTING_STEPS, BATCH, WIDTH = 2000, 256, 128


def _network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, outputs)
    )


def _fit(network: nn.Module, states: Tensor, loss: Callable[[Tensor], Tensor]) -> None:
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(FITTING_STEPS):
        batch = states[torch.randint(len(states), (min(BATCH, len(states)),))]
        optimiser.zero_grad()
        loss(batch).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def fit_rnd(states: Tensor) -> StateScore:
    """Random network distillation: the error of a network that imitates a random one on the fitted states."""
    target, imitation = _network(states.shape[1], 32).requires_grad_(False), _network(states.shape[1], 32)
    _fit(imitation, states, lambda batch: (imitation(batch) - target(batch)).square().mean())

    def score(batch: Tensor) -> Tensor:
        errors: Tensor = (imitation(batch) - target(batch)).square()
        return errors.mean(1)

    return score


def fit_logpzo(states: Tensor, steps: int = 10) -> StateScore:
    """As FAIL-Detect's logpZO: a flow from noise to the fitted states; the score of a state is the mean square of its noise."""
    velocity = _network(states.shape[1] + 1, states.shape[1])

    def loss(batch: Tensor) -> Tensor:
        noise, time = torch.randn_like(batch), torch.rand(len(batch), 1)
        between = (1 - time) * noise + time * batch
        errors: Tensor = (velocity(torch.cat([between, time], 1)) - (batch - noise)).square()
        return errors.mean()

    _fit(velocity, states, loss)

    def score(batch: Tensor) -> Tensor:
        for step in range(steps):
            time = torch.full((len(batch), 1), 1 - step / steps)
            batch = batch - velocity(torch.cat([batch, time], 1)) / steps
        return batch.square().mean(1)

    return score


STATE_SCORES: dict[str, Callable[[Tensor], StateScore]] = {"rnd": fit_rnd, "logpzo": fit_logpzo}


def add_state_scores(settings: EvaluationConfig, run: RunScores, place: Path, folder: Path) -> RunScores:
    """A run with `STATE_SCORES` instead of its own: of the test all episodes, of the calibration those that nothing was fitted
    to.

    Args:
        settings: of the run.
        run: one arm of it.
        place: its folder.
        folder: of the workload; the states that the networks are fitted to are stored there.
    """
    states = replayed_states(settings, run, place)
    fitting = folder / "fitting.npz"
    kept = list(range(len(run.episodes)))
    if place.parent.name == "calibration":
        fitted = [index for index in kept if run.episodes[index].record.episode % 2 == 0]
        kept = [index for index in kept if index not in fitted]
        succeeded = [states[index] for index in fitted if run.episodes[index].record.success]
        with atomic_write(fitting) as draft, draft.open("wb") as file:
            np.savez(file, states=np.concatenate(succeeded or [states[0]]))
    scores = _fitted(np.load(fitting)["states"])
    return replace(
        run,
        episodes=tuple(
            EpisodeScores(run.episodes[index].record, {name: score(states[index]) for name, score in scores.items()})
            for index in kept
        ),
    )


def _fitted(states: NDArray[np.float32]) -> dict[str, Callable[[NDArray[np.float32]], NDArray[np.float64]]]:
    centre, size = states.mean(0), np.maximum(states.std(0), 1e-3)

    def scaled(one: NDArray[np.float32]) -> Tensor:
        # Numbers that do not vary in successful episodes may be far off elsewhere: bounded, so that they do not drown the rest.
        return torch.from_numpy(np.clip((one - centre) / size, -10, 10).astype(np.float32))

    found = {}
    with torch.random.fork_rng(devices=[]):
        for name, fit in STATE_SCORES.items():
            torch.manual_seed(0)
            found[name] = fit(scaled(states))

    def scoring(score: StateScore) -> Callable[[NDArray[np.float32]], NDArray[np.float64]]:
        def score_states(one: NDArray[np.float32]) -> NDArray[np.float64]:
            with torch.no_grad():
                return score(scaled(one)).double().numpy()

        return score_states

    return {name: scoring(score) for name, score in found.items()}


def replayed_states(settings: EvaluationConfig, run: RunScores, place: Path) -> list[NDArray[np.float32]]:
    """(rounds, D) the state at the beginning of each round, for each episode: runs do not store states, but initial seeds and
    actions, which the simulator executes again.
    """
    path = place / "states.npz"
    if path.exists():
        with np.load(path) as stored:
            if len(stored.files) == len(run.episodes):
                return [stored[str(number)] for number in range(len(run.episodes))]
    benchmark = find_benchmark(settings.env)
    found: list[NDArray[np.float32]] = []
    with Store(place) as store:
        task, env = "", None
        for one in run.episodes:
            if one.record.task != task or env is None:
                if env is not None:
                    env.close()
                task, env = one.record.task, benchmark.make(one.record.task)
            observation, _ = env.reset(seed=settings.initial_seed(one.record.episode))
            states = []
            for kept in store.rounds(one.record.key):
                states.append(_state(observation))
                for action in kept.actions:
                    observation, *_ = env.step(action)
            found.append(np.stack(states).astype(np.float32))
        if env is not None:
            env.close()
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.savez(file, **{str(number): states for number, states in enumerate(found)})  # type: ignore[arg-type]
    return found


def _state(observation: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate(
        [np.ravel(observation[key]) for key in ("environment_state", "agent_pos") if key in observation]
    )
