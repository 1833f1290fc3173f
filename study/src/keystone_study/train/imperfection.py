"""Human-like errors on top of a scripted expert: action noise, lower speed, aiming beside the object, pauses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Array


@dataclass(frozen=True)
class Imperfection:
    """Deviation of a demonstrator from the scripted expert.

    Attributes:
        noise: standard deviation of the noise on the hand's motion, where 1 is the fastest motion.
        correlation: of that noise from one step to the next.
        speed: range from which the speed of an episode is drawn, as a share of the expert's.
        aim: how far to one side of the object (along x, in m) a misjudged segment aims ...
        aim_spread: ... and the standard deviation of that distance (m).
        aim_share: share of misjudged segments.
        hold: steps in a segment.
        pause: probability, in each step, that a pause begins.
        pause_steps: shortest and longest pause.
    """

    noise: float = 0.0
    correlation: float = 0.8
    speed: tuple[float, float] = (1.0, 1.0)
    aim: float = 0.0
    aim_spread: float = 0.0
    aim_share: float = 0.0
    hold: int = 30
    pause: float = 0.0
    pause_steps: tuple[int, int] = (2, 5)


#: By name. In ``mixed`` demonstrators disagree about where the object is, so that a policy learns two modes; in ``misled`` most
#: of them are wrong about it (and succeed all the same, in the end), so that the larger mode is the worse one.
REGIMES: dict[str, Imperfection] = {
    "clean": Imperfection(noise=0.08, speed=(0.85, 1.0), pause=0.005),
    "noisy": Imperfection(noise=0.25, speed=(0.6, 1.0), pause=0.005),
    "mixed": Imperfection(noise=0.10, speed=(0.7, 1.0), aim=0.04, aim_spread=0.006, aim_share=0.35, pause=0.005),
    "misled": Imperfection(noise=0.10, speed=(0.7, 1.0), aim=0.04, aim_spread=0.006, aim_share=0.65, pause=0.005),
}


class ImperfectDemonstrator:
    """The demonstrator of one episode: errs about where the object is, and in what it commands.

    Args:
        imperfection: how.
        random: all randomness.
        motion: dimensions of an action that are motions, the first ones; what follows is the gripper.

    >>> demonstrator = ImperfectDemonstrator(REGIMES["clean"], np.random.default_rng(0), motion=3)
    >>> demonstrator.aiming_error()
    0.0
    >>> demonstrator.move(np.array([9.0, 0.0, 0.0, 1.0])).dtype
    dtype('float32')
    """

    def __init__(self, imperfection: Imperfection, random: np.random.Generator, motion: int) -> None:
        self._imperfection, self._random = imperfection, random
        self._speed = random.uniform(*imperfection.speed)
        self._noise = np.zeros(motion)
        self._offset = 0.0
        self._step = self._pause_left = 0

    def aiming_error(self) -> float:
        """How far (m, along x) the object is believed to be from where it is. Call once per step."""
        settings = self._imperfection
        if self._step % settings.hold == 0:
            misjudged = self._random.random() < settings.aim_share
            self._offset = self._random.normal(settings.aim, settings.aim_spread) * misjudged
        self._step += 1
        return self._offset

    def move(self, action: NDArray[np.floating]) -> Array:
        """(D,) the executed action, from -1 to 1, for the expert's ``action`` (D,). Call once per step."""
        settings, random, motion = self._imperfection, self._random, len(self._noise)
        executed = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        executed[:motion] *= 0.0 if self._pauses() else self._speed
        rho = settings.correlation
        self._noise = rho * self._noise + np.sqrt(1 - rho**2) * random.normal(size=motion)
        executed[:motion] += settings.noise * self._noise
        result: Array = np.clip(executed, -1.0, 1.0).astype(np.float32)
        return result

    def _pauses(self) -> bool:
        if self._pause_left == 0 and self._random.random() < self._imperfection.pause:
            self._pause_left = int(self._random.integers(*self._imperfection.pause_steps, endpoint=True))
        pausing = self._pause_left > 0
        self._pause_left -= pausing
        return pausing
