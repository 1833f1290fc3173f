"""Time of one round at batch size 1, relative to the policy as it is: interleaved, on one thread, in CPU time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from keystone_robotics.attachment import attach, detach, reattach
from keystone_robotics.environments import find_benchmark
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.policies import load_agent
from keystone_robotics.spec import Spec

ROUNDS = 40


def relative_latency(settings: EvaluationConfig, arms: Sequence[Spec], rounds: int = ROUNDS) -> dict[str, float]:
    """For each arm the median over rounds of its time divided by the first arm's time in the same round."""
    torch.set_num_threads(1)
    benchmark = find_benchmark(settings.env)
    agent = load_agent(settings.policy, settings.device)
    agent.fit(benchmark)
    task = settings.tasks[0]
    env = benchmark.make(task)
    try:
        observation, _ = env.reset(seed=settings.initial_seed(0))
    finally:
        env.close()
    handles = {}
    for arm in arms:
        handles[str(arm)] = attach(agent.policy, arm)
        detach(agent.policy)
    times: dict[str, list[float]] = {name: [] for name in handles}
    for number in range(rounds + 2):
        for name, handle in handles.items():
            reattach(handle)
            with handle.seeded([number]):
                begin = time.thread_time()
                agent.plan([[observation]], [task])
                spent = time.thread_time() - begin
            detach(agent.policy)
            if number >= 2:  # the first rounds check, compile and warm caches
                times[name].append(spent)
    base = times[str(arms[0])]
    return {name: statistics.median(a / b for a, b in zip(own, base, strict=True)) for name, own in times.items()}
