"""Which arms are eligible for the race: those that the policy takes and that keep the latency limit."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.latency import Latencies, measure_latencies, timed_arm
from keystone_robotics.evaluate.worker import Worker
from keystone_robotics.files import write_file
from keystone_robotics.policies.fingerprint import checkpoint_fingerprint
from keystone_robotics.spec import Spec
from keystone_robotics.tune.config import TuneConfig
from keystone_robotics.tune.space import POLICY_AS_IT_IS, arms_of, is_free

LATENCY_FILE = "latency.json"
#: Spread of the policy's own rounds above which latencies are rough.
BUSY = 0.3


def policy_defaults(worker: Worker) -> tuple[int, int | None]:
    """In a worker: the steps that the policy executes, and its denoising steps (None if unknown)."""
    with worker.attached(POLICY_AS_IT_IS) as handle:
        return worker.execute, handle.engine.adapter.default_steps(handle.engine.owner)


def all_arms(config: TuneConfig, executor: Executor, settings: EvaluationConfig) -> list[Spec]:
    """The arms of the space for this policy, the policy as it is first."""
    return arms_of(config.space, *executor.run_in_worker(settings, policy_defaults))


def find_latencies(
    folder: Path, executor: Executor, settings: EvaluationConfig, arms: Sequence[Spec], console: Console
) -> Latencies:
    """Measured now, or by an earlier call of this run: decisions must not change when it is resumed."""
    path = folder / LATENCY_FILE
    identity = {"policy": checkpoint_fingerprint(settings.policy), **settings.identity()}
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        stored = json.loads(path.read_text())
        found = Latencies(**stored["latencies"])
        if stored["of"] == json.loads(json.dumps(identity)) and found.covers(arms):
            return found
    kinds = len({timed_arm(arm) for arm in arms})
    with console.status(f"measuring the latency of {len(arms)} arms ({kinds} kinds of round), about a minute"):
        found = measure_latencies(executor, settings, arms)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KeystoneError(f"cannot create {folder}: {error.strerror}") from None
    write_file(path, json.dumps({"of": identity, "latencies": asdict(found)}, indent=2) + "\n")
    return found


def find_eligible_arms(
    config: TuneConfig, arms: Sequence[Spec], latencies: Latencies, say: Callable[[str], None]
) -> list[Spec]:
    """The arms that may enter the race, the fastest first: it wins a tie. Says which may not, and why.

    Raises:
        KeystoneError: if none is left beside the policy as it is.
    """
    limit = config.latency
    for reason, count in Counter(latencies.refused[str(arm)] for arm in arms if str(arm) in latencies.refused).items():
        say(f"{count} of {len(arms)} arms are left out: {reason}")
    possible = [arm for arm in arms if str(arm) not in latencies.refused]
    others = [arm for arm in possible if arm != POLICY_AS_IT_IS]
    if not others:
        raise KeystoneError("there is nothing to try beside the policy as it is: give other arms, --arm …")
    allowed = [
        arm for arm in possible if limit is None or limit.allows(latencies.step_ms(arm), latencies.step_ratio(arm))
    ]
    slow = [arm for arm in others if arm not in allowed]
    if len(slow) == len(others):
        fastest = min(others, key=latencies.step_ratio)
        raise KeystoneError(
            f"--latency {limit}: no arm keeps it. The fastest is {fastest} with {latency_text(latencies, fastest)}; "
            f"the policy as it is takes {latencies.round_ms(POLICY_AS_IT_IS):.1f} ms a round. Give a larger --latency, or "
            "arms of fewer steps or candidates (--arm)"
        )
    if slow:
        say(f"{len(slow)} of {len(arms)} arms exceed --latency {limit} per executed step and are not tried:")
        for arm in sorted(slow, key=latencies.step_ratio):
            say(f"  {arm}: {latency_text(latencies, arm)}")
    if (spread := latencies.spread(POLICY_AS_IT_IS)) > BUSY:
        say(
            f"the machine is busy: the middle half of the policy's rounds differs by {spread:.0%} of the median, so that "
            "latencies are rough"
        )
    free = sum(map(is_free, allowed))
    say(
        f"{config.evaluation.policy} in {config.evaluation.env}: {len(allowed)} arms ({free} with one sample, "
        f"{len(allowed) - free} with K candidates), {len(config.evaluation.tasks)} tasks, {config.budget} episodes; "
        f"the policy as it is takes {latencies.round_ms(POLICY_AS_IT_IS):.1f} ms a round"
    )
    return sorted(allowed, key=latencies.step_ratio)


def latency_text(latencies: Latencies, arm: Spec) -> str:
    """Milliseconds of a round, and the time of an executed step relative to the policy as it is."""
    rounds = latencies.rounds(arm)
    more = "" if rounds == 1 else f", {rounds:g} times the rounds"
    return f"{latencies.round_ms(arm):.1f} ms a round{more} ({latencies.step_ratio(arm):.2f} of the policy's time per step)"
