"""Who enters the race: the arms that the policy takes and that keep the latency limit."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.worker import Worker
from keystone_robotics.files import write_file
from keystone_robotics.policies.fingerprint import checkpoint_fingerprint
from keystone_robotics.spec import Spec
from keystone_robotics.tune.config import TuneConfig
from keystone_robotics.tune.latency import Latencies, measure_latencies
from keystone_robotics.tune.space import POLICY_AS_IT_IS, arms_of, is_free

FILE = "latency.json"
#: Spread of the policy's own rounds above which latencies are rough.
BUSY = 0.3


def all_arms(config: TuneConfig, worker: Worker) -> list[Spec]:
    """The arms of the space for this policy, the policy as it is first."""
    with worker.attached(POLICY_AS_IT_IS) as handle:
        steps = handle.engine.adapter.default_steps(handle.engine.owner)
    return arms_of(config.space, worker.execute, steps)


def find_latencies(folder: Path, worker: Worker, arms: Sequence[Spec], console: Console) -> Latencies:
    """Measured now, or by an earlier call of this run: decisions must not change when it is resumed."""
    path, settings = folder / FILE, worker.settings
    identity = {"policy": checkpoint_fingerprint(settings.policy), **settings.identity()}
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        stored = json.loads(path.read_text())
        found = Latencies(**stored["latencies"])
        if stored["of"] == json.loads(json.dumps(identity)) and found.covers(arms):
            return found
    with console.status("") as status:
        found = measure_latencies(
            worker, arms, lambda done, total: status.update(f"latency of {len(arms)} arms: round {done} of {total}")
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KeystoneError(f"cannot create {folder}: {error.strerror}") from None
    write_file(path, json.dumps({"of": identity, "latencies": asdict(found)}, indent=2) + "\n")
    return found


def find_entrants(
    config: TuneConfig, arms: Sequence[Spec], latencies: Latencies, say: Callable[[str], None]
) -> list[Spec]:
    """The arms that enter the race, the fastest first: it wins a tie. Says which do not enter.

    Raises:
        KeystoneError: if none is left beside the policy as it is.
    """
    own, limit = latencies.of(POLICY_AS_IT_IS), config.latency
    for reason, count in Counter(latencies.refused[str(arm)] for arm in arms if str(arm) in latencies.refused).items():
        say(f"{count} of {len(arms)} arms are left out: {reason}")
    possible = [arm for arm in arms if str(arm) not in latencies.refused]
    others = [arm for arm in possible if arm != POLICY_AS_IT_IS]
    if not others:
        raise KeystoneError("there is nothing to try beside the policy as it is: give other arms, --arm …")
    allowed = [arm for arm in possible if limit is None or limit.allows(latencies.of(arm), own)]
    slow = [arm for arm in others if arm not in allowed]
    if len(slow) == len(others):
        fastest = min(others, key=latencies.of)
        raise KeystoneError(
            f"--latency {limit}: no arm keeps it. The fastest is {fastest} with {latency_text(latencies, fastest)}; "
            f"the policy as it is takes {own:.1f} ms"
        )
    if slow:
        fastest = min(slow, key=latencies.of)
        say(
            f"{len(slow)} of {len(arms)} arms exceed --latency {limit} and are not tried; the fastest of them is {fastest} "
            f"with {latency_text(latencies, fastest)}"
        )
    if (spread := latencies.spread(POLICY_AS_IT_IS)) > BUSY:
        say(
            f"the machine is busy: the middle half of the policy's rounds differs by {spread:.0%} of the median, so that "
            "latencies are rough"
        )
    free = sum(map(is_free, allowed))
    say(
        f"{config.evaluation.policy} in {config.evaluation.env}: {len(allowed)} arms ({free} with one sample, "
        f"{len(allowed) - free} with K candidates), {len(config.evaluation.tasks)} tasks, {config.budget} episodes; "
        f"the policy as it is takes {own:.1f} ms a round"
    )
    return sorted(allowed, key=latencies.of)


def latency_text(latencies: Latencies, arm: Spec) -> str:
    """Milliseconds, and the ratio to the policy as it is."""
    return (
        f"{latencies.of(arm):.1f} ms ({latencies.of(arm) / latencies.of(POLICY_AS_IT_IS):.2f} of the policy as it is)"
    )
