"""Synthetic candidates, runs and events for the tests of alarms."""

import numpy as np
import torch

from keystone_robotics.monitor.observed import Observed
from keystone_robotics.monitor.run import EpisodeScores, RunScores
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.sample.adapter import Window
from keystone_robotics.sample.event import RoundEvent, RoundTimes
from keystone_robotics.select import select


def observed(chunks, rule="keystone", **given):
    """Candidates (K, T, D) as a score sees them."""
    chunks = np.asarray(chunks, np.float32)
    selection = select(chunks, rule)
    return Observed(
        chunks,
        selection.labels,
        selection.consensus,
        selection.dispersion,
        **{"executed": chunks.shape[1] // 2, **given},
    )


def cloud(random, k=16, steps=8, dims=3, spread=0.1, modes=1, apart=4.0):
    """A movement with noise; with two modes, half of the candidates go another way."""
    movement = np.linspace(0, 1, steps)[:, None] * np.ones(dims)
    other = movement * np.array([1.0, *[-apart] * (dims - 1)])
    mode = np.arange(k) % modes
    return np.where(mode[:, None, None] == 0, movement, other) + spread * random.normal(size=(k, steps, dims))


def run_of(series, outcomes=None, tasks=None, score="dispersion", states=None, **given):
    """A run whose episodes have these scores."""
    n = len(series)
    outcomes = [True] * n if outcomes is None else outcomes
    tasks = ["reach"] * n if tasks is None else tasks
    states = list(range(n)) if states is None else states
    episodes = tuple(
        EpisodeScores(
            EpisodeRecord(task, state, success, arm="medoid:k=16", rounds=len(values)), {score: np.array(values)}
        )
        for values, success, task, state in zip(series, outcomes, tasks, states, strict=True)
    )
    default = {"policy": "mine", "fingerprint": "f", "weights": "", "env": "toy", "seed": 0, "execute": 4}
    return RunScores(source="run", arm="medoid:k=16", episodes=episodes, **{**default, **given})


def event_of(candidates, episodes=(), number=0, rule="medoid", window=None, space=None):
    """A round of candidates (B, K, T, D)."""
    candidates = torch.as_tensor(np.asarray(candidates, np.float32))
    steps = candidates.shape[2]
    return RoundEvent(
        number, (0,) * len(candidates), candidates, select(candidates, rule), "plain", candidates.shape[1],
        RoundTimes(0.0, 0.0, 0.0), tuple(episodes), space, window or Window(None, 0, steps // 2, ()),
    )  # fmt: skip
