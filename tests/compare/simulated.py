"""Two arms whose true rates are known, on initial states that are hard or easy for both."""

import numpy as np
from scipy.stats import beta

from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.records import EpisodeRecord


def draw(random, tasks, states, repeats, a, b, alike=0.3, coupled=0.7, noise=0.5, trials=1):
    """(trials, tasks, states, repeats) outcomes of A and of B, 0 or 1.

    Args:
        random: numpy's generator.
        tasks, states, repeats: how many.
        a, b: true rates.
        alike: correlation of two repeats of one initial state.
        coupled: share of states that are as hard for B as for A.
        noise: share of repeats in which both have the same luck.
        trials: independent data sets.
    """
    strength = 1 / alike - 1
    shape = (trials, tasks, states)
    hard = random.random(shape)
    hard_b = np.where(random.random(shape) < coupled, hard, random.random(shape))
    luck = random.random((*shape, repeats))
    luck_b = np.where(random.random((*shape, repeats)) < noise, luck, random.random((*shape, repeats)))
    # Between 20,001 quantiles, to within 1e-5: SciPy's of every single state took longer than what is tested.
    at = np.linspace(0, 1, 20_001)
    chance_a, chance_b = (
        np.interp(which, at, beta.ppf(at, rate * strength, (1 - rate) * strength))
        for which, rate in ((hard, a), (hard_b, b))
    )
    return (luck < chance_a[..., None]).astype(int), (luck_b < chance_b[..., None]).astype(int)


def outcomes(successes, name="arm", tool="keystone", states=True, **more):
    """(tasks, states, repeats) outcomes as an arm, with hashes if `states`."""
    return Outcomes(
        name,
        f"runs/{name}",
        tool,
        tuple(
            EpisodeRecord(
                f"task {task}", number, bool(value), repeat, initial_state=f"{task}-{number}" if states else ""
            )
            for (task, number, repeat), value in np.ndenumerate(np.asarray(successes))
        ),
        **more,
    )


def coverage(intervals, truth):
    return float(np.mean([low - 1e-12 <= truth <= high + 1e-12 for low, high in intervals]))
