"""Which arms are tried on which workloads, and what for."""

from __future__ import annotations

from dataclasses import dataclass

from keystone_robotics.spec import RECOMMENDED_RULE as OURS
from keystone_robotics.spec import Spec

PAPER = "keystone:k=16"  #: the paper's rule at the paper's K
#: The factor on the initial noise at which rules are tried on cooler samples; chosen on the tasks for choosing.
COOL = 0.8
#: One sample, its initial noise scaled down: costs nothing, so everything else has to be better than the best of them.
COOLER = tuple(f"first:temperature={factor}" for factor in (0.8, 0.6, 0.4, 0.2))


@dataclass(frozen=True)
class Section:
    """Arms that belong together in a table; only of some workloads, if these are named."""

    title: str
    arms: tuple[str, ...]
    workloads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A comparison of many arms.

    Attributes:
        name: of the command's argument.
        title: above its table.
        sections: the arms; the very first is what all are compared with.
        workloads: names.
        repeats: at most so many; None is all of the workload's.
        overview: its page begins with one row for each workload, as the paper's main table has them.
    """

    name: str
    title: str
    sections: tuple[Section, ...]
    workloads: tuple[str, ...]
    repeats: int | None = None
    overview: bool = False

    def arms(self, workload: str) -> dict[str, str]:
        """Those that are tried on a workload, by the name they have in a store, with the title of their (first) section."""
        named: dict[str, str] = {}
        for section in self.sections:
            if workload in section.workloads or not section.workloads:
                for arm in section.arms:
                    named.setdefault(str(Spec.parse(arm)), section.title)
        return named


BASELINE = Section("one sample", ("first", *COOLER))

MAIN = Experiment(
    "main",
    "The main table",
    (
        BASELINE,
        Section("the paper's rule", (PAPER, f"{PAPER},temperature={COOL}")),
        Section("ours", (f"{OURS}:k=16", f"{OURS}:k=16,temperature={COOL}", f"{OURS}:k=4", f"{OURS}:k=4,temperature={COOL}")),
    ),
    (
        "metaworld-mixed", "metaworld-noisy", "metaworld-clean", "pusht", "diffusion", "metaworld-easy",
        "metaworld-undertrained", "metaworld-misled", "metaworld-untaught",
    ),
    overview=True,
)  # fmt: skip

ABLATIONS = Experiment(
    "ablations",
    "Ablations, the peers' rules, and ours",
    (
        BASELINE,
        Section(
            "the paper's rule, and its parts changed one at a time",
            (
                "keystone:k=16", "keystone:k=4", "keystone:k=8", "keystone:k=32", "keystone:metric=cosine",
                "keystone:clusters=4", "cluster-medoid", "keystone:tau=0.6", "keystone:init=first", "keystone:window=chunk",
            ),
        ),
        Section("the peers' rules", ("medoid", "density", "kde", "coherent", "mean")),
        Section(
            "commit to a mode, then average inside it",
            (
                "cluster-mean:k=16", "cluster-mean:k=4", "trimmed-mean:k=16", "trimmed-mean:k=4", "core-mean:k=16",
                "core-mean:k=4", "core-mean:k=32", "core-mean:share=0.25", "core-mean:share=0.75", "core-mean:window=chunk",
            ),
        ),
        Section(
            "the gripper as open or closed, not as a number",
            tuple(f"{rule}:gripper=3" for rule in ("cluster-mean", "core-mean")),
            workloads=("metaworld-mixed",),
        ),
        Section(
            "four steps executed, not eight (compare with the first of them)",
            ("first:execute=4", "keystone:execute=4", "core-mean:execute=4"),
        ),
        Section(
            "on cooler samples",
            (
                f"keystone:k=16,temperature={COOL}", f"mean:k=16,temperature={COOL}", f"cluster-mean:k=16,temperature={COOL}",
                f"trimmed-mean:k=16,temperature={COOL}", f"trimmed-mean:k=4,temperature={COOL}",
                f"core-mean:k=16,temperature={COOL}", f"core-mean:k=4,temperature={COOL}", "core-mean:k=16,temperature=0.6",
                "core-mean:k=4,temperature=0.6",
            ),
        ),
    ),
    ("metaworld-mixed", "pusht"),
    repeats=1,
)  # fmt: skip

CHOOSING = Experiment(
    "choosing",
    "What rules and settings were chosen on",
    (
        BASELINE,
        Section("the paper's rule, and the mean of all", ("keystone", "mean")),
        *(
            Section(
                f"`{rule}`",
                (f"{rule}:k=16", f"{rule}:k=16,temperature=0.6", f"{rule}:k=4", f"{rule}:k=4,temperature=0.6", *more),
            )
            for rule, more in (
                ("trimmed-mean", ()),
                ("cluster-mean", ()),
                (
                    "core-mean",
                    (
                        "core-mean:k=16,temperature=0.8", "core-mean:k=4,temperature=0.8", "core-mean:share=0.25",
                        "core-mean:share=0.75",
                    ),
                ),
            )
        ),
    ),
    ("choosing-metaworld", "choosing-pusht"),
)  # fmt: skip

CONFIRM = Experiment(
    "confirm",
    "The recommended rule on fresh states",
    (
        Section("one sample", ("first", *COOLER[:3])),
        Section("the paper's rule", (PAPER,)),
        Section("ours", (f"{OURS}:k=16",)),
    ),
    (
        "confirm-metaworld-mixed", "confirm-metaworld-noisy", "confirm-pusht", "confirm-metaworld-easy",
        "confirm-metaworld-undertrained",
    ),
    overview=True,
)  # fmt: skip

EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (MAIN, ABLATIONS, CHOOSING, CONFIRM)}
