"""Experts that demonstrate the tasks of a benchmark, with human-like errors."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments import BENCHMARKS, Observation
from keystone_robotics.environments.benchmark import Array
from keystone_robotics.environments.metaworld import STATE, MetaWorldEnv
from keystone_robotics.environments.pusht import PIXELS, PushTEnv
from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_study.train.aloha_expert import AlohaExpert
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.expert import Expert, attempt_random
from keystone_study.train.imperfection import REGIMES, ImperfectDemonstrator
from keystone_study.train.ogbench_expert import OGBenchExpert

if TYPE_CHECKING:
    from keystone_study.train.pusht_expert import ExpertSettings

MOTION = 3  #: the first dimensions of a Meta-World action, the hand's motion; what follows is the gripper
OBJECT_X = 4  #: where Meta-World's observation holds x (m) of the object that is handled first


class MetaWorldExpert(Expert):
    """Meta-World's scripted experts with the errors of `keystone_study.train.imperfection`."""

    benchmark = BENCHMARKS["metaworld"]
    default_tasks = (
        "pick-place-v3",
        "push-v3",
        "hammer-v3",
        "coffee-pull-v3",
        "shelf-place-v3",
        "peg-insert-side-v3",
    )
    regimes = tuple(REGIMES)
    motion = tuple(range(MOTION))
    packages = ("metaworld", "mujoco")
    max_steps: ClassVar[int] = 220  # slow demonstrations may take longer than a policy is given
    tail: ClassVar[int] = 6  # steps after success, in which the hand holds still

    def describe(self, regime: str) -> str:
        return f"{REGIMES[regime]} max_steps={self.max_steps} tail={self.tail}"

    def demonstrate(self, task: str, regime: str, seed: int, index: int) -> Demonstration:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the experts warn about actions above 1, which are clipped
            return self._attempt(task, regime, seed, index)

    def _attempt(self, task: str, regime: str, seed: int, index: int) -> Demonstration:
        from metaworld.policies import ENV_POLICY_MAP

        random, state_seed = attempt_random(task, regime, seed, index)
        env, demonstrator = _metaworld_env(task), ImperfectDemonstrator(REGIMES[regime], random, MOTION)
        script = ENV_POLICY_MAP[task]()
        observation, _ = env.reset(seed=state_seed)
        seen: list[Observation] = []
        actions: list[Array] = []
        last = self.max_steps
        success = False
        while len(actions) < last:
            believed = observation["environment_state"][:STATE].astype(np.float64)
            believed[OBJECT_X] += demonstrator.aiming_error()
            action = demonstrator.move(script.get_action(believed))
            seen.append(observation)
            actions.append(action)
            observation, _, done, _, _ = env.step(action)
            if done and not success:
                success, last = True, min(self.max_steps, len(actions) + self.tail)
        return Demonstration(
            agent_pos=np.stack([one["agent_pos"] for one in seen]),
            environment_state=np.stack([one["environment_state"] for one in seen]),
            actions=np.stack(actions),
            success=success,
        )


class PushTExperts(Expert):
    """The sampling expert of `keystone_study.train.pusht_expert`: deterministic, random, and random with action noise."""

    benchmark = BENCHMARKS["pusht"]
    default_tasks = ("pusht",)
    regimes = ("clean", "noisy", "mixed")
    relative = (0, 1)
    repeated = 2
    packages = ("gym-pusht", "pymunk")

    def describe(self, regime: str) -> str:
        return str(_pusht_settings(regime))

    def demonstrate(self, task: str, regime: str, seed: int, index: int) -> Demonstration:
        from keystone_study.train.pusht_expert import PushTExpert

        random, state_seed = attempt_random(task, regime, seed, index)
        env = _pusht_env()
        env.reset(seed=state_seed)
        return PushTExpert(random, _pusht_settings(regime)).demonstrate(env, self.benchmark.max_steps(task))


class PushTPixelExperts(PushTExperts):
    """The same demonstrations, of which a policy sees the finger's position and the image."""

    benchmark = BENCHMARKS["pusht-pixels"]
    image = PIXELS

    def draw(self, environment_states: Array) -> NDArray[np.uint8]:
        env = _pusht_env()
        env.reset(seed=0)
        return np.stack([env.image_of(state) for state in environment_states])


@functools.lru_cache(maxsize=1)  # making one takes as long as several episodes
def _metaworld_env(task: str) -> MetaWorldEnv:
    return MetaWorldEnv(task)


@functools.lru_cache(maxsize=1)
def _pusht_env() -> PushTEnv:
    return PushTEnv()


def _pusht_settings(regime: str) -> ExpertSettings:
    from keystone_study.train.pusht_expert import ExpertSettings

    settings = {
        "clean": ExpertSettings(temperature=0.0, longer_way=0.0),
        "noisy": ExpertSettings(action_noise=6.0),
        "mixed": ExpertSettings(),
    }
    return settings[regime]


EXPERTS: dict[str, Expert] = {
    expert.benchmark.name: expert
    for expert in (MetaWorldExpert(), PushTExperts(), PushTPixelExperts(), OGBenchExpert(), AlohaExpert())
}


def find_expert(benchmark: str) -> Expert:
    """The expert of a benchmark.

    >>> find_expert("pushT")
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: there is no expert for 'pushT': did you mean 'pusht'? ...
    """
    if benchmark not in EXPERTS:
        raise KeystoneError(f"there is no expert for {benchmark!r}: {nearest_name(benchmark, EXPERTS)}")
    return EXPERTS[benchmark]
