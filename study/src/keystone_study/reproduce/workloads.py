"""What the experiments are made on: a policy that comes with the package, tasks, initial states."""

from __future__ import annotations

from dataclasses import dataclass, replace

from keystone_robotics.evaluate.arms import Arm
from keystone_robotics.evaluate.settings import Settings
from keystone_robotics.policies.load import trained_on

QUICK = 3  #: initial states of a task in a trial run; enough to see that everything works, not for a conclusion
#: Of initial states and noise: what rules and settings were chosen on, what the main table reports, and states that nobody had
#: seen when the recommendation was made.
CHOOSING_SEED, REPORTED_SEED, FRESH_SEED = 0, 1, 2


@dataclass(frozen=True)
class Workload:
    """One row of the main table.

    Attributes:
        name: for folders and files.
        title: for readers.
        policy: that comes with the package.
        env: benchmark.
        states: initial states of each task.
        repeats: of each, with fresh policy noise.
        about: what a reader has to know of it, one sentence.
        tasks: default all that the policy was trained on; others are tried nevertheless.
        seed: of initial states and noise.
    """

    name: str
    title: str
    policy: str
    env: str
    states: int
    repeats: int
    about: str
    tasks: tuple[str, ...] = ()
    seed: int = REPORTED_SEED

    def settings(self, arms: tuple[str, ...], repeats: int | None = None) -> Settings:
        """The evaluation of some arms, at most so many repeats of them; None is all."""
        return Settings(
            policy=self.policy,
            env=self.env,
            tasks=self.tasks or trained_on(self.policy),
            episodes=self.states,
            repeats=min(self.repeats, repeats or self.repeats),
            arms=tuple(Arm.parse(arm) for arm in arms),
            seed=self.seed,
            shard=min(20, self.states),
            allow_untrained_tasks=True,
        )

    def quick(self) -> Workload:
        """A little of it."""
        tasks = self.tasks or trained_on(self.policy)
        return replace(self, states=QUICK, repeats=1, tasks=tasks[:2])


HELD_OUT = "Eight tasks that no rule or setting was chosen on."

WORKLOADS: dict[str, Workload] = {
    one.name: one
    for one in (
        Workload(
            "metaworld-mixed", "Meta-World, mixed", "metaworld-held-out-mixed", "metaworld", 12, 5,
            f"{HELD_OUT} In 35 % of the stretches of the demonstrations the hand aims 4 cm to one side.",
        ),
        Workload(
            "metaworld-noisy", "Meta-World, noisy", "metaworld-held-out-noisy", "metaworld", 12, 3,
            f"{HELD_OUT} Demonstrated slowly, with an unsteady hand.",
        ),
        Workload(
            "pusht", "PushT", "pusht-mixed", "pusht", 100, 5,
            "Initial states that no rule or setting was chosen on. Demonstrations push the T round either way.",
        ),
        Workload(
            "metaworld-clean", "Meta-World, clean", "metaworld-held-out-clean", "metaworld", 12, 2,
            f"{HELD_OUT} Demonstrated with a steady hand.",
        ),
        Workload(
            "metaworld-easy", "Meta-World, saturated", "metaworld-easy-clean", "metaworld", 12, 1,
            "Six easy tasks that no rule or setting was chosen on, demonstrated with a steady hand.",
        ),
        Workload(
            "metaworld-undertrained", "Meta-World, undertrained", "metaworld-held-out-undertrained", "metaworld", 12, 2,
            f"{HELD_OUT} As mixed, but six demonstrations of each instead of sixty.",
        ),
        Workload(
            "metaworld-misled", "Meta-World, mostly misjudged", "metaworld-misled", "metaworld", 12, 2,
            "In 65 % of the stretches the hand aims 4 cm to one side. Meant as a case in which the larger mode is wrong, "
            "but only demonstrations that succeed in the end are kept, so that it is not that wrong. The tasks that rules were "
            "chosen on, other initial states.",
        ),
        Workload(
            "metaworld-untaught", "Meta-World, tasks never taught", "metaworld-mixed", "metaworld", 12, 1,
            "Tasks that look like those that the policy was taught.",
            ("push-wall-v3", "pick-place-wall-v3", "push-back-v3", "soccer-v3", "coffee-push-v3", "sweep-v3"),
        ),
        Workload(
            "choosing-metaworld", "Meta-World, for choosing", "metaworld-mixed", "metaworld", 20, 1,
            "The six tasks that rules and settings were chosen on, demonstrated as mixed.", seed=CHOOSING_SEED,
        ),
        Workload(
            "choosing-pusht", "PushT, for choosing", "pusht-mixed", "pusht", 60, 2,
            "The initial states that rules and settings were chosen on.", seed=CHOOSING_SEED,
        ),
        Workload(
            "diffusion", "Meta-World, LeRobot's Diffusion Policy", "metaworld-mixed-diffusion", "metaworld", 10, 2,
            "Demonstrated as mixed. The tasks that rules were chosen on, other initial states.",
        ),
    )
}  # fmt: skip
#: Some of them once more, in states that nobody had seen.
WORKLOADS |= {
    f"confirm-{name}": replace(
        WORKLOADS[name],
        name=f"confirm-{name}",
        title=f"{WORKLOADS[name].title}, fresh states",
        repeats=1,
        about="States that nobody had seen when the rule was recommended.",
        seed=FRESH_SEED,
    )
    for name in ("metaworld-mixed", "metaworld-noisy", "pusht", "metaworld-easy", "metaworld-undertrained")
}
