"""``keystone eval``: compare arms on the same episodes."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from keystone_robotics.cli.flags import Arm, flat
from keystone_robotics.errors import KeystoneError, StepsRefused
from keystone_robotics.evaluate.config import DEFAULT_ARMS
from keystone_robotics.spec import Spec

if TYPE_CHECKING:
    from rich.console import Console

    from keystone_robotics.evaluate.config import EvaluationConfig
    from keystone_robotics.evaluate.executors import Executor
    from keystone_robotics.evaluate.run import Evaluation


def run(
    config: Annotated[Path | None, tyro.conf.Positional] = None,
    policy: str | None = None,
    env: str | None = None,
    tasks: tuple[str, ...] | None = None,
    arm: Arm = (),
    episodes: int | None = None,
    repeats: int | None = None,
    seed: int | None = None,
    shard: int | None = None,
    max_steps: int | None = None,
    execute: int | None = None,
    device: str | None = None,
    keep_rounds: bool = False,
    allow_untrained_tasks: bool = False,
    latency: bool = True,
    trust_remote_code: bool = False,
    out: Path = Path("out/eval"),
    workers: int | None = None,
    ray: str | None = None,
    gpus: float | None = None,
    episode_timeout: float | None = None,
    retry_errors: bool = False,
) -> None:
    """Roll out the same episodes with every arm, store them, and compare the arms.

    After an interruption the same command resumes the run. Arms, tasks, episodes and repeats can be added later. Exit code 0; 1
    if every episode of an arm ended with an error; 2 if the evaluation cannot be run or was interrupted.

    Args:
        config: YAML file with any of the settings below (arms: a list); flags override it.
        policy: a policy that comes with KeyStone's study, a folder written by `keystone train` or LeRobot, a LeRobot name on
            the hub, or package.module:function that returns an Agent.
        env: metaworld, pusht, pusht-pixels, ogbench, aloha, a LeRobot environment (lerobot:libero,
            lerobot:libero?task=libero_10), one of gymnasium's registry
            (gymnasium:MountainCarContinuous-v0?min_return=90), or package.module:Name of a Benchmark.
        tasks: of the environment; default those that the policy was trained on, else all.
        arm: RULE or RULE:name=value,… with options of keystone.Spec and the rule's parameters: first, keystone:k=16,
            first:temperature=0.6. May be given several times; the others are compared with the first. Default: DEFAULT_ARMS.
        episodes: initial states per task, the same for all arms and repeats (default 50).
        repeats: rollouts of every initial state with fresh policy noise (default 1; the paper uses 5).
        seed: of initial states and policy noise (default 0).
        shard: episodes that are rolled out together as one batch (default 25); smaller values need less memory.
        max_steps: environment steps after which an episode has failed; default the environment's.
        execute: steps of a chunk that are executed before the next round; default the policy's.
        device: of the policy, such as cpu or cuda:1; default its checkpoint's.
        keep_rounds: store the candidates of every round, which `keystone report` shows.
        allow_untrained_tasks: also evaluate tasks that the policy was not trained on.
        latency: time one round at batch size 1 for the first observation of every episode (default); costs one round each.
        trust_remote_code: run code that a LeRobot checkpoint names but LeRobot did not install (docs/security.md).
        out: folder of the run.
        workers: processes on this machine (default 1; 0 rolls out in this process, for debugging), or shards at a time on Ray
            (default one per CPU).
        ray: run on a Ray cluster: "auto" finds the running one, "local" starts one here, or an address.
        gpus: fraction of a GPU per worker on Ray (default 0).
        episode_timeout: seconds that an episode may spend in its environment, and that one round may take; then its worker is
            killed and the episode is an error. Default: 20 times the slowest episode so far, at least 60 s; 1800 s before one
            has ended and for rounds.
        retry_errors: roll out again the episodes that ended with an error.
    """
    from keystone_robotics.evaluate.config import config_from, read_yaml
    from keystone_robotics.evaluate.executors import make_executor

    given = {
        "policy": policy, "env": env, "tasks": tasks, "arms": flat(arm) or None, "episodes": episodes, "repeats": repeats,
        "seed": seed, "shard": shard, "max_steps": max_steps, "execute": execute, "device": device,
        "keep_rounds": keep_rounds or None, "allow_untrained_tasks": allow_untrained_tasks or None,
        "latency": None if latency else False, "trust_remote_code": trust_remote_code or None,
    }  # fmt: skip
    for text in flat(arm):
        Spec.parse(text)  # the arms first: a wrong one is the likeliest error
    values = read_yaml(config) if config else {}
    values.update({name: value for name, value in given.items() if value is not None})
    # Wrong values are said at once, and so are unknown policies, environments and tasks: before torch is imported.
    wanted = config_from(values, ("unknown",))
    from keystone_robotics.policies.load import check_names

    asked = wanted.tasks if values.get("tasks") else ()
    check_names(wanted.policy, wanted.env, asked, wanted.allow_untrained_tasks)

    from rich.console import Console

    import keystone_robotics.compare.summary  # noqa: F401 (a package that the table needs is missed now, not at the end)
    from keystone_robotics.policies.load import default_tasks

    console = Console()
    if os.environ.get("KEYSTONE_RERUN"):
        hint = "KEYSTONE_RERUN is not read by `keystone eval`: give --keep-rounds, then `keystone view RUN`"
        console.print(f"note: {hint}", style="bold yellow", markup=False)
    executor = make_executor(workers, ray, gpus, episode_timeout)
    settings = config_from(values, () if asked else default_tasks(wanted.policy, wanted.env))
    try:
        evaluation = _evaluate(settings, out, executor, console, retry_errors, optional_steps="arms" not in values)
    except KeyboardInterrupt:
        raise KeystoneError(
            f"interrupted; finished shards are stored in {out}: run the same command again to resume"
        ) from None
    _show(evaluation, console)


# What `--help` says is what is done.
run.__doc__ = (run.__doc__ or "").replace("DEFAULT_ARMS", ", ".join(map(str, DEFAULT_ARMS)))


def _evaluate(
    settings: EvaluationConfig,
    out: Path,
    executor: Executor,
    console: Console,
    retry_errors: bool,
    optional_steps: bool,
) -> Evaluation:
    """Roll out; with ``optional_steps``, without the arms' numbers of denoising steps if the policy refuses them."""
    from keystone_robotics.evaluate.run import evaluate

    try:
        return evaluate(settings, out, executor, console, retry_errors)
    except StepsRefused as refusal:
        if not optional_steps:
            raise
        console.print(f"default arms are rolled out without steps=: {refusal}", soft_wrap=True, highlight=False)
        arms = tuple(dict.fromkeys(replace(one, steps=None) for one in settings.arms))
        return evaluate(replace(settings, arms=arms), out, executor, console, retry_errors)


def _show(evaluation: Evaluation, console: Console) -> None:
    """Write and print the summary; exits with 1 if every episode of an arm ended with an error."""
    from keystone_robotics.compare.summary import (
        arms_with_only_errors,
        errors_line,
        summarise,
        summary_table,
        write_summary,
    )
    from keystone_robotics.tables import counted

    summaries = summarise(evaluation.episodes, evaluation.arms)
    write_summary(evaluation.folder, summaries)
    console.print(summary_table(summaries), crop=False)
    rate = f" ({evaluation.new / evaluation.seconds:.1f} per second)" if evaluation.new else ""
    done = f"{counted(evaluation.new, 'episode')} rolled out in {evaluation.seconds:.0f} s{rate}."
    console.print(f"{done} Stored in {evaluation.folder}", soft_wrap=True, highlight=False)
    if line := errors_line(summaries):
        console.print(f"{line}; --retry-errors repeats them", soft_wrap=True, highlight=False)
    if broken := arms_with_only_errors(summaries):
        sys.stderr.write(f"keystone: every episode of {', '.join(broken)} ended with an error\n")
        raise SystemExit(1)
