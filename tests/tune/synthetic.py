"""Arms whose true rates are known, on initial states that are hard or easy for all of them."""

import numpy as np
from scipy.stats import norm

from keystone_robotics.tune.race import Race


def draw(random, rates, blocks, tasks=8, shared=0.5):
    """(arms, blocks, tasks) outcomes. ``shared`` is the correlation of two arms' luck in one state; tasks differ by up to ±1
    standard deviation, and each arm's rate is that over all tasks.
    """
    rates = np.asarray(rates)
    offsets = np.linspace(-1, 1, tasks) if tasks > 1 else np.zeros(1)
    # the threshold at which the mean over tasks of Φ(threshold + offset) is the rate
    grid = np.linspace(-5, 5, 2001)
    thresholds = np.interp(rates, norm.cdf(grid[:, None] + offsets).mean(1), grid)
    luck = np.sqrt(shared) * random.standard_normal((1, blocks, tasks))
    luck = luck + np.sqrt(1 - shared) * random.standard_normal((len(rates), blocks, tasks))
    return luck < thresholds[:, None, None] + offsets


def run(outcomes, groups=None, budget=10**6, alpha=0.05):
    """A race on these outcomes, to its end or theirs."""
    arms, blocks, tasks = outcomes.shape
    race = Race(groups or [0] * arms, tasks, budget, alpha)
    while (batch := race.next_batch()) and batch.first + batch.count <= blocks:
        race.add(outcomes[list(batch.arms), batch.first : batch.first + batch.count])
    return race
