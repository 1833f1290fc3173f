"""``keystone eval``: arms against each other on the same episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from keystone_robotics.errors import KeystoneError


def run(
    config: Annotated[Path | None, tyro.conf.Positional] = None,
    policy: str | None = None,
    env: str | None = None,
    tasks: tuple[str, ...] | None = None,
    arm: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    episodes: int | None = None,
    repeats: int | None = None,
    seed: int | None = None,
    shard: int | None = None,
    max_steps: int | None = None,
    execute: int | None = None,
    device: str | None = None,
    keep_rounds: bool = False,
    allow_untrained_tasks: bool = False,
    out: Path = Path("out/eval"),
    workers: int | None = None,
    ray: str | None = None,
    gpus: float | None = None,
    retry_errors: bool = False,
) -> None:
    """Does it help this policy? Roll out the same episodes with every arm, store them, and compare.

    Interrupted at any moment, the same command goes on where it was. Arms, tasks, episodes and repeats may be added later.

    Args:
        config: a YAML file with any of the options below (arms: a list); flags go over it.
        policy: one that comes with KeyStone, a folder that `keystone train` or LeRobot wrote, LeRobot's name on the hub, or
            package.module:function, which returns an Agent of your own.
        env: metaworld, pusht, one of LeRobot's (lerobot:libero, lerobot:libero?task=libero_10), or package.module:Name, a
            Benchmark of your own.
        tasks: of the environment; default those that the policy was trained on, else all.
        arm: RULE or RULE:name=value,… with the options of keystone.Spec and the rule's parameters: first, keystone:k=16,
            first:temperature=0.6. Give it several times; the first is what the others are compared with. Default: first,
            first:temperature=0.6, keystone:k=16 and core-mean:k=16.
        episodes: initial states per task, the same for all arms and repeats (default 50).
        repeats: of every episode, with fresh policy noise (default 1; the paper has 5).
        seed: of initial states and policy noise (default 0).
        shard: episodes that are rolled out together as one batch (default 25). Smaller needs less memory.
        max_steps: after which an episode has failed; default the environment's.
        execute: steps of a chunk that are executed before the next round; default the policy's.
        device: of the policy, cpu or cuda:1, say; default its checkpoint's.
        keep_rounds: store the candidates of every round, for reports.
        allow_untrained_tasks: also run tasks that the policy was not trained on.
        out: folder of the run.
        workers: processes on this machine (default 1), or shards at a time on Ray (default one for each CPU).
        ray: run on a Ray cluster: "auto" finds the running one, "local" starts one here, or an address.
        gpus: share of a GPU for each worker on Ray (default 0).
        retry_errors: roll out again the episodes that ended with an error.
    """
    from rich.console import Console

    from keystone_robotics.evaluate.config import config_from, read_yaml
    from keystone_robotics.evaluate.executors import make_executor
    from keystone_robotics.evaluate.run import evaluate
    from keystone_robotics.evaluate.summary import as_table

    console = Console()
    given = {
        "policy": policy, "env": env, "tasks": tasks, "arms": arm or None, "episodes": episodes, "repeats": repeats,
        "seed": seed, "shard": shard, "max_steps": max_steps, "execute": execute, "device": device,
        "keep_rounds": keep_rounds or None, "allow_untrained_tasks": allow_untrained_tasks or None,
    }  # fmt: skip
    values = read_yaml(config) if config else {}
    values.update({name: value for name, value in given.items() if value is not None})
    executor = make_executor(workers, ray, gpus)
    settings = config_from(values, _default_tasks(values))
    try:
        report = evaluate(settings, out, executor, console, retry_errors)
    except KeyboardInterrupt:
        raise KeystoneError(
            f"interrupted; what was done is stored in {out}, and the same command goes on from there"
        ) from None
    console.print(as_table(report.summaries))
    rate = f" ({report.new / report.seconds:.1f} a second)" if report.new else ""
    console.print(
        f"{report.new} episodes rolled out in {report.seconds:.0f} s{rate}. Stored in {out}",
        soft_wrap=True,
        highlight=False,
    )


def _default_tasks(values: dict[str, object]) -> tuple[str, ...]:
    """What the policy was trained on, else all tasks of the environment."""
    if values.get("tasks") or not isinstance(values.get("policy"), str) or not isinstance(values.get("env"), str):
        return ()
    from keystone_robotics.environments import find_benchmark
    from keystone_robotics.policies.load import trained_on

    return trained_on(str(values["policy"])) or find_benchmark(str(values["env"])).tasks()
