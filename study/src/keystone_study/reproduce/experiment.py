"""The experiments: which arms run on which workloads."""

from __future__ import annotations

from dataclasses import dataclass

from keystone_robotics.spec import Spec

#: The factor on the initial noise at which rules are tried on cooler samples; chosen on the tasks for choosing.
COOLED_TEMPERATURE = 0.8
COOLED = f"temperature={COOLED_TEMPERATURE}"
#: One sample, its initial noise scaled down. They cost nothing: only what exceeds the best of them is a gain of K candidates.
COOLED_BASELINES = tuple(f"first:temperature={factor}" for factor in (0.8, 0.6, 0.4, 0.2))


@dataclass(frozen=True)
class Section:
    """Arms that are grouped in a table; ``workloads`` limits them to some workloads."""

    title: str
    arms: tuple[str, ...]
    workloads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A comparison of many arms.

    Attributes:
        name: of the command's argument.
        title: above its table.
        sections: the arms; the first one is the baseline of all comparisons.
        workloads: names.
        repeats: upper limit of repeats; None is all of the workload's.
    """

    name: str
    title: str
    sections: tuple[Section, ...]
    workloads: tuple[str, ...]
    repeats: int | None = None

    def arms(self, workload: str) -> dict[str, str]:
        """The arms of a workload by their name in the store, with the title of their (first) section."""
        named: dict[str, str] = {}
        for section in self.sections:
            if workload in section.workloads or not section.workloads:
                for arm in section.arms:
                    named.setdefault(str(Spec.parse(arm)), section.title)
        return named


BASELINE = Section("one sample", ("first", *COOLED_BASELINES))

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
                f"keystone:k=16,{COOLED}", f"mean:k=16,{COOLED}", f"cluster-mean:k=16,{COOLED}",
                f"trimmed-mean:k=16,{COOLED}", f"trimmed-mean:k=4,{COOLED}",
                f"core-mean:k=16,{COOLED}", f"core-mean:k=4,{COOLED}", "core-mean:k=16,temperature=0.6",
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

EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (ABLATIONS, CHOOSING)}
