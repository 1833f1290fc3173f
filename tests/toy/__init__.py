"""A benchmark that costs nothing, whose environments go wrong where a test wants them to, and small flow policies for it.

Worker processes and Ray's workers find both by their names, as they find a user's own.
"""

import os
import signal
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium
import numpy as np
import torch

from keystone_robotics.environments.benchmark import Benchmark
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.policies import Agent, load_agent
from keystone_robotics.records import Store
from keystone_robotics.spec import Spec
from keystone_study.policies.flow import FlowConfig, FlowPolicy, save_flow

TASKS = ("reach", "step-fails", "reset-fails", "nan", "dies-once", "dies-always", "wide", "more-actions", "slow",
         "cannot-be-made", "close-fails", "exits", "aborts", "hangs", "blocks", "leaks")  # fmt: skip
#: Episodes of which something goes wrong: those whose seed leaves this remainder when it is divided by four.
WRONG = 1


#: What the environments of "leaks" leave behind.
_LEAKED = []


def go_wrong(how):
    """End or hold up the process that this runs in, as its name says."""
    if how == "exits":
        sys.exit("the simulator has ended")
    elif how == "aborts":
        os.abort()
    elif how == "hangs":
        while True:
            pass
    elif how == "blocks":
        threading.Event().wait()
    elif how == "tells-its-environment":
        raise KeystoneError(f"variables: {' '.join(os.environ)}")


def initial_position(seed):
    return np.random.default_rng(seed).uniform(-1, 1, 2).astype(np.float32)


class PointEnv(gymnasium.Env):
    """A point in the plane that is to come near the origin. ``folder`` is for what must outlive the process."""

    def __init__(self, task, folder, calm=False):
        self.task, self.folder, self.calm = task, Path(folder), calm
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (3 if task == "more-actions" else 2,), np.float32)
        self.executed = []

    def reset(self, *, seed=None, options=None):
        self.wrong = seed % 4 == WRONG and not self.calm
        if self.task == "reset-fails" and self.wrong:
            raise RuntimeError("the table is gone")
        if self.task == "leaks":
            _LEAKED.append(np.ones(2**20))  # 8 MiB
        self.position = initial_position(seed)
        self.steps = 0
        return self._observation(), {"initial_state": self.position.copy()}

    def step(self, action):
        assert np.isfinite(action).all(), "an action that is no number reached the robot"
        assert self.action_space.contains(action), action
        self.executed.append(action)
        self.steps += 1
        if self.wrong and self.steps == 3:
            self._go_wrong()
        if self.task == "slow":
            import time

            time.sleep(0.05)
        self.position = self.position + 0.2 * action[:2]
        success = bool(np.abs(self.position).max() < 0.3)
        return self._observation(), 0.0, success, False, {"success": success}

    def close(self):
        if self.task == "close-fails":
            raise RuntimeError("the window is stuck")

    def _go_wrong(self):
        if self.task in ("step-fails", "close-fails"):
            raise RuntimeError("the gripper is stuck")
        marker = self.folder / "died"
        if self.task == "dies-always" or (self.task == "dies-once" and not marker.exists()):
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        go_wrong(self.task)

    def _observation(self):
        state = np.concatenate([self.position, [self.steps / 10]])
        if self.task == "nan" and self.wrong and self.steps >= 2:
            state[:] = np.nan
        if self.task == "wide":
            state = np.append(state, 0.0)
        return {"agent_pos": self.position.copy(), "environment_state": state.astype(np.float32)}


@dataclass(frozen=True)
class Toy(Benchmark):
    folder: str
    calm: str = ""  # if given, nothing goes wrong
    name = "toy"

    def tasks(self):
        return TASKS

    def make(self, task, render=False):
        if task == "cannot-be-made":
            raise OSError("the scene is not on this machine")
        return PointEnv(task, self.folder, bool(self.calm))

    def max_steps(self, task):
        return 12


def dies_at_start(folder, parent) -> Agent:
    """A policy that can be loaded in one process alone, by its number."""
    if os.getpid() != int(parent):
        os.kill(os.getpid(), signal.SIGKILL)
    return load_agent(folder)


def goes_wrong_when_loaded(how) -> Agent:
    return go_wrong(how)


def goes_wrong(folder, how) -> Agent:
    """A policy that goes wrong when it sees the initial state of episode 2."""
    agent, bad = load_agent(folder), initial_position(2)
    plan = agent.plan

    def watched(histories, tasks):
        if any(np.array_equal(history[-1]["agent_pos"], bad) for history in histories):
            go_wrong(how)
        return plan(histories, tasks)

    agent.plan = watched
    return agent


def toy_settings(trained, folder, task="reach", arms=("first", "keystone:k=4"), **given):
    given = {"policy": str(trained), "episodes": 8, "shard": 4, **given}
    tasks = (task,) if isinstance(task, str) else tuple(task)
    return EvaluationConfig(env=f"toy:Toy?folder={folder}", tasks=tasks, arms=tuple(map(Spec.parse, arms)), **given)


def save_random_flow(folder, observation_dim=3, action_dim=2, seed=0, **config):
    """A policy with random weights, whose chunks depend on the observation and on the noise."""
    folder.mkdir(parents=True, exist_ok=True)
    small = {"horizon": 6, "n_action_steps": 3, "width": 16, "blocks": 1, "integration_steps": 2}
    torch.manual_seed(seed)
    policy = FlowPolicy(FlowConfig(observation_dim, action_dim, **{**small, **config}))
    torch.nn.init.normal_(policy.leave.weight, std=0.3)
    save_flow(policy, folder)
    return folder


def table(folder):
    """The stored episodes of a run, without timing; distances are rounded, as their last digits depend on the batch."""
    with Store(Path(folder)) as store:
        return [
            replace(
                row, latency_ms=None, dispersion=_rounded(row.dispersion), median_distance=_rounded(row.median_distance)
            )
            for row in store.episodes()
        ]


def _rounded(value):
    return None if value is None else round(value, 3)


def summaries(evaluation):
    """The table of an evaluation, without latencies."""
    from keystone_robotics.compare.summary import summarise  # imports scipy, which no worker needs

    return [
        replace(summary, latency_ms=None, dispersion=None, median_distance=None)
        for summary in summarise(evaluation.episodes, evaluation.arms)
    ]
