"""A bounded search for what K candidates can buy beyond free changes: samplers tried on states for choosing, the best reported.

Each contender is a policy (the workload's own, or the same weights with another sampler) and an arm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from rich.console import Console

from keystone_robotics.compare.comparison import compare, rate_of
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.spec import BASELINE, Spec
from keystone_study.reproduce.analysis import Difference


@dataclass(frozen=True)
class Contender:
    """Something that turns an observation into a chunk.

    Attributes:
        family: what it tries.
        arm: how candidates are drawn and one is selected.
        method: a sampler of `keystone_study.methods` with its options, ``name?k=16&steps=2``; empty for the policy's own.
        evaluations: of the network for one round: (one after the other, all together).
    """

    family: str
    arm: str = BASELINE
    method: str = ""
    evaluations: tuple[int, int] = (10, 10)

    @property
    def name(self) -> str:
        return self.method or self.arm

    def policy(self, own: str) -> str:
        """The reference of its policy."""
        if not self.method:
            return own
        name, _, options = self.method.partition("?")
        return f"keystone_study.methods:with_method?policy={quote(own, safe='')}&method={name}&{options}"


def _grid(family: str, method: str, *options: tuple[str, tuple[int, int]]) -> tuple[Contender, ...]:
    return tuple(Contender(family, BASELINE, f"{method}?{given}", cost) for given, cost in options)


#: What is compared with: the policy as it is, free changes, and the rules of the product.
REFERENCES = (
    Contender("reference", "first"),
    Contender("reference", "first:steps=2", evaluations=(2, 2)),
    Contender("reference", "first:temperature=0.6"),
    Contender("reference", "first:steps=3,temperature=0.6", evaluations=(3, 3)),
    Contender("reference", "keystone:k=16", evaluations=(10, 160)),
    Contender("reference", "core-mean:k=16", evaluations=(10, 160)),
    Contender("reference", "core-mean:k=16,steps=2", evaluations=(2, 32)),
    Contender("reference", "core-mean:k=16,steps=3", evaluations=(3, 48)),
)

PARTIAL = (
    *_grid(
        "partial denoising: finish the winner", "partial",
        ("k=16&steps=10&after=3", (10, 55)), ("k=16&steps=10&after=1", (10, 25)), ("k=16&steps=3&after=1", (3, 18)),
    ),
    *_grid(
        "partial denoising: finish the core, average", "partial",
        ("k=16&steps=10&after=3&finish=core", (10, 104)), ("k=16&steps=3&after=1&finish=core", (3, 32)),
    ),
)  # fmt: skip

CONTENDERS = (
    Contender("core size and temperature", "core-mean:k=16,steps=2,temperature=0.8,share=0.75", evaluations=(2, 32)),
    Contender("core size and temperature", "core-mean:k=16,steps=3,temperature=0.8,share=0.75", evaluations=(3, 48)),
    Contender("core size and temperature", "core-mean:k=16,steps=3,share=0.25", evaluations=(3, 48)),
    Contender("half of K, twice the rounds", "core-mean:k=8,steps=3,execute=4", evaluations=(6, 48)),
    *_grid(
        "several temperatures at once", "core-mean",
        ("k=16&steps=3&temperatures=1-0.8-0.6-0.4", (3, 48)), ("k=16&steps=2&temperatures=1-0.6", (2, 32)),
    ),
    *_grid("antithetic noise", "core-mean", ("k=16&steps=3&paired=1", (3, 48)), ("k=16&steps=10&paired=1", (10, 160))),
    *_grid(
        "mode seeking in noise space", "from-core-noise",
        ("k=16&steps=2&final=3", (5, 35)), ("k=16&steps=3&final=10", (13, 58)),
        ("k=16&steps=3&final=3&start=medoid&scale=0.6", (6, 51)),
    ),
    *_grid("consensus denoising", "consensus", ("k=16&steps=3", (5, 80)), ("k=16&steps=5", (9, 144))),
    *_grid(
        "core's mean projected back", "projected",
        ("k=16&steps=3&back=0.5&again=1", (4, 49)), ("k=16&steps=3&back=0.7&again=2", (5, 50)),
    ),
    *PARTIAL,
)  # fmt: skip

#: Test-time methods of others, whose parameters are chosen for each policy.
RESCALED = _grid(
    "score rescaling (TSR)", "rescaled",
    *((f"steps={steps}&factor={factor}&sigma={sigma}", (steps, steps))
      for steps in (3, 10) for factor in (2, 4, 16) for sigma in (0.3, 1.0)),
)  # fmt: skip
TICKETS = _grid("golden ticket", "ticket", *((f"steps=10&seed={seed}", (10, 10)) for seed in range(16)))


def roll_out(
    contenders: Sequence[Contender], settings: EvaluationConfig, folder: Path, executor: Executor, console: Console
) -> dict[str, Outcomes]:
    """The episodes of every contender on the states of ``settings``; what is stored is not rolled out again."""
    found = {}
    own = [one for one in contenders if not one.method]
    if own:
        arms = tuple(Spec.parse(one.arm) for one in own)
        rows = evaluate(replace(settings, arms=arms), folder / "own", executor, console).episodes
        for one, arm in zip(own, arms, strict=True):
            found[one.name] = outcomes_of(one.name, [row for row in rows if row.arm == str(arm)])
    for one in contenders:
        if one.method:
            given = replace(settings, policy=one.policy(settings.policy), arms=(Spec(BASELINE),))
            rows = evaluate(given, folder / one.method.replace("?", "-").replace("&", "-"), executor, console).episodes
            found[one.name] = outcomes_of(one.name, list(rows))
    return found


def choose_contender(
    contenders: Sequence[Contender],
    settings: EvaluationConfig,
    folder: Path,
    executor: Executor,
    console: Console,
    shortlist: int = 4,
) -> Contender:
    """The best on the states for choosing: all on one shard of states, the best of these on all; of equals the first."""
    few = roll_out(contenders, replace(settings, episodes=settings.shard), folder, executor, console)
    short = sorted(contenders, key=lambda one: -rate_of(few[one.name]).rate)[:shortlist]
    more = roll_out(short, settings, folder, executor, console)
    return max(short, key=lambda one: rate_of(more[one.name]).rate)


def difference(outcomes: dict[str, Outcomes], arm: str, base: str) -> Difference:
    """Paired, on the same states."""
    one = compare(outcomes[base], outcomes[arm], "require").overall
    return Difference(one.difference, one.interval, one.p, one.p)
