"""The arms of the main study: free changes of one sample, and K candidates with the same freedom."""

from __future__ import annotations

from keystone_robotics.spec import BASELINE, RECOMMENDED_RULE, Spec

#: Denoising steps; None is the policy's own number.
STEPS = (1, 2, 3, 5, None)
#: Factors on the initial noise.
TEMPERATURES = (1.0, 0.8, 0.6, 0.4)
#: One sample may also start from zero; K candidates would all be the same.
ZERO = 0.0

AS_IT_IS = str(Spec(BASELINE))
PAPER = "keystone:k=16"  #: the paper's rule at the paper's K
FEW = "steps=2"
#: Arms that are the same for all policies. Two steps were fixed after a pilot on four of these policies, on other states: the
#: number is not blind to the policies that it is reported on.
FIXED = (PAPER, f"{RECOMMENDED_RULE}:k=16", f"keystone:k=16,{FEW}", f"{RECOMMENDED_RULE}:k=16,{FEW}")


def free_changes(execute: int) -> tuple[Spec, ...]:
    """One sample: steps × temperature × executed steps (as trained, and half of them). The cheapest come first.

    >>> len(free_changes(8)), str(free_changes(8)[0])
    (50, 'first:steps=1')
    """
    return tuple(
        Spec(BASELINE, steps=steps, temperature=temperature, execute=executed)
        for executed in (None, execute // 2)
        for steps in STEPS
        for temperature in (*TEMPERATURES, ZERO)
    )


def with_candidates(execute: int) -> tuple[Spec, ...]:
    """K = 16 with the same freedom, and as many arms: the recommended rule in the same grid, two more rules at every number of
    steps. The cheapest come first.

    >>> len(with_candidates(8))
    50
    """
    grid = [
        Spec(RECOMMENDED_RULE, 16, steps=steps, temperature=temperature, execute=executed)
        for executed in (None, execute // 2)
        for steps in STEPS
        for temperature in TEMPERATURES
    ]
    return (*grid, *(Spec(rule, 16, steps=steps) for rule in ("keystone", "mean") for steps in STEPS))


def candidates_against_steps() -> tuple[Spec, ...]:
    """One sample at every number of steps, and three rules × K × steps."""
    single = [Spec(BASELINE, steps=steps) for steps in STEPS]
    several = [
        Spec(rule, k, steps=steps)
        for rule in ("keystone", RECOMMENDED_RULE, "mean")
        for k in (4, 16)
        for steps in STEPS
    ]
    return (*single, *several)


#: One sample, its initial noise scaled down: of these and the policy as it is, the one that does best on the reported episodes
#: is the control of earlier versions of the study.
COOLED = tuple(Spec(BASELINE, temperature=temperature) for temperature in TEMPERATURES[1:])
