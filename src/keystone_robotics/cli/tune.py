"""``keystone tune``: find what is best for a policy in an environment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from keystone_robotics.cli.flags import Arm, flat
from keystone_robotics.errors import KeystoneError


def run(
    policy: str,
    env: str,
    budget: int = 1500,
    latency: str = "1.0",
    tasks: tuple[str, ...] | None = None,
    arm: Arm = (),
    space: Literal["default", "wide"] | None = None,
    seed: int | None = None,
    shard: int | None = None,
    max_steps: int | None = None,
    execute: int | None = None,
    device: str | None = None,
    allow_untrained_tasks: bool = False,
    trust_remote_code: bool = False,
    out: Path = Path("out/tune"),
    workers: int | None = None,
    ray: str | None = None,
    gpus: float | None = None,
    episode_timeout: float | None = None,
) -> None:
    """Find the rule, K, denoising steps, temperature and executed steps that are best for a policy, within a latency.

    Measures the latency of every arm, races those within the limit on shared initial states, and confirms the best free change
    (one sample) and the best arm with K candidates against the policy as it is, on states that the race did not use. After an
    interruption the same command resumes the run. Exit code 0; 1 if every episode of a confirmed arm ended with an error; 2 if
    it cannot be run, was interrupted, or all episodes end with errors.

    Args:
        policy: as for `keystone eval`.
        env: as for `keystone eval`.
        budget: episodes in all; 30 % of them confirm the choice.
        latency: how much time an executed step may cost: a multiple of that of the policy as it is (1.0: no slower than now),
            milliseconds for as many executed steps as one round of the policy as it is has (20ms), or none.
        tasks: of the environment; default those that the policy was trained on, else all.
        arm: RULE:name=value,… as for `keystone eval`, with alternatives: "core-mean:k=4|16,steps=2|3|default",
            "first:temperature=1|0.6,execute=default|half". May be given several times; replaces --space. The policy as it is
            always takes part.
        space: default (11 arms with one sample, 12 with K candidates, for 1500 episodes or more) or wide (40 and 32, for 5000
            or more): docs/tune.md.
        seed: of initial states and policy noise (default 0).
        shard: episodes that are rolled out together as one batch at most (default 25); smaller values need less memory.
        max_steps: environment steps after which an episode has failed; default the environment's.
        execute: steps of a chunk that are executed before the next round; default the policy's.
        device: of the policy, such as cpu or cuda:1; default its checkpoint's.
        allow_untrained_tasks: also tasks that the policy was not trained on.
        trust_remote_code: run code that a LeRobot checkpoint names but LeRobot did not install (docs/security.md).
        out: folder of the run: tune.md, tune.json, recommended.yaml, and the episodes.
        workers: as for `keystone eval`: processes on this machine (default 1; 0 rolls out in this process), or shards at a time
            on Ray (default one per CPU).
        ray: run on a Ray cluster: "auto" finds the running one, "local" starts one here, or an address.
        gpus: fraction of a GPU per worker on Ray (default 0).
        episode_timeout: as for `keystone eval`.
    """
    from keystone_robotics.tune.limit import LatencyLimit
    from keystone_robotics.tune.space import SPACES, expand

    # Wrong values are said at once, before torch is imported.
    limit = LatencyLimit.parse(latency)
    for pattern in flat(arm):
        expand(pattern, None)
    if arm and space:
        raise KeystoneError(f"--arm replaces the arms of --space {space}: give one of both")

    from keystone_robotics.policies.load import check_names

    check_names(policy, env, tasks or (), allow_untrained_tasks)
    from rich.console import Console

    from keystone_robotics.evaluate.config import config_from
    from keystone_robotics.evaluate.executors import make_executor
    from keystone_robotics.policies.load import default_tasks
    from keystone_robotics.tables import as_text
    from keystone_robotics.tune.config import TuneConfig
    from keystone_robotics.tune.run import tune
    from keystone_robotics.tune.usage import as_yaml

    console = Console()
    given = {
        "policy": policy, "env": env, "tasks": tasks, "seed": seed, "shard": shard, "max_steps": max_steps,
        "execute": execute, "device": device, "allow_untrained_tasks": allow_untrained_tasks or None,
        "trust_remote_code": trust_remote_code or None,
    }  # fmt: skip
    executor = make_executor(workers, ray, gpus, episode_timeout)
    arms = flat(arm) or SPACES[space or "default"]
    config = TuneConfig(config_from(given, tasks or default_tasks(policy, env)), budget, arms, limit)
    try:
        tuned = tune(config, out, executor, console)
    except KeyboardInterrupt:
        raise KeystoneError(
            f"interrupted; finished shards are stored in {out}: run the same command again to resume"
        ) from None

    def say(text: str = "", style: str | None = None) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False, style=style)

    say("\nrace:")
    say(as_text(tuned.rows(raced=True)))
    for line in tuned.finalists:
        say(line)
    say("\nconfirmation, on initial states that the race did not use:")
    say(as_text(tuned.confirmation_rows()))
    for one in tuned.verdict.comparisons:
        say(f"{one.b} against {one.a}: {one.verdict}")
    say("\n" + tuned.verdict.headline, "bold")
    for line in tuned.verdict.notes:
        say(line)
    say(as_yaml(tuned.recommended, "how to use it").rstrip())
    if tuned.verdict.faster is not None:
        say(as_yaml(tuned.verdict.faster, "or, faster").rstrip())
    rate = f" ({tuned.new / tuned.seconds:.1f} per second)" if tuned.new else ""
    say(
        f"{tuned.used} of {budget} episodes, {tuned.new} of them rolled out now in {tuned.seconds:.0f} s{rate}: {out}/tune.md"
    )
    if tuned.only_errors:
        sys.stderr.write(f"keystone: every episode of {', '.join(tuned.only_errors)} ended with an error\n")
        raise SystemExit(1)
