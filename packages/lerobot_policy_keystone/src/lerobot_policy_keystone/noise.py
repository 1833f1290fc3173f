"""With ``--policy.keystone.seed``, LeRobot's evaluation draws the noise that `keystone eval --seed` draws for the same episode.

A round's noise then depends on task, initial state and round, not on what was rolled out before. LeRobot's loop tells a policy
neither task nor initial state, so two functions of its script are wrapped: ``run_one``, which knows the task, and ``rollout``,
which knows the seeds of the initial states.
"""

import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from keystone_robotics.attachment import attached
from keystone_robotics.evaluate.config import MOST_EPISODES, noise_seed

#: The script's name, and its name under ``python -m``.
SCRIPTS = ("lerobot.scripts.lerobot_eval", "__main__")

_task: ContextVar[str | None] = ContextVar("keystone_task", default=None)


def install() -> None:
    """Wrap the evaluation script, if this process runs it."""
    for name in SCRIPTS:
        script = sys.modules.get(name)
        if hasattr(script, "run_one") and hasattr(script, "rollout"):
            _wrap(script)


def _wrap(script: Any) -> None:
    run_one, rollout = script.run_one, script.rollout

    @functools.wraps(run_one)
    def run_named(task_group: str, task_id: int, *args: Any, **kwargs: Any) -> Any:
        token = _task.set(f"{task_group}/{task_id}")
        try:
            return run_one(task_group, task_id, *args, **kwargs)
        finally:
            _task.reset(token)

    @functools.wraps(rollout)
    def rollout_seeded(*args: Any, policy: Any, seeds: list[int] | None = None, **kwargs: Any) -> Any:
        handle, task = attached(policy), _task.get()
        if handle is None or handle.spec.seed is None or task is None or not seeds:
            return rollout(*args, policy=policy, seeds=seeds, **kwargs)
        with handle.seeded(_noise_seeds(handle.spec.seed, task, seeds)):
            return rollout(*args, policy=policy, seeds=seeds, **kwargs)

    script.run_one, script.rollout = run_named, rollout_seeded


def _noise_seeds(seed: int, task: str, initial_seeds: Sequence[int]) -> Iterator[int]:
    """For every row of every round, whose rows are the episodes of a rollout."""
    episodes = [one - seed * MOST_EPISODES for one in initial_seeds]
    for number in itertools.count():
        for episode in episodes:
            yield noise_seed(seed, 0, task, episode, number)
