"""One checkpoint in LeRobot's PushT, by `lerobot-eval` and by `keystone eval`: do both count the same successes?

``python -m benchmarks.both_harnesses CHECKPOINT`` writes ``both_harnesses.json``. Finished evaluations in ``--runs`` are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import describe_machine, write_json
from keystone_robotics.compare.comparison import compare
from keystone_robotics.compare.find import read
from keystone_robotics.compare.outcomes import Outcomes

NAME = "both_harnesses"
OBSERVATIONS = "environment_state_agent_pos"

#: The policy as it is, free changes, the paper's rule, the recommendation.
ARMS = ("first", "first:steps=2", "first:temperature=0.6", "keystone:k=16", "core-mean:k=16", "core-mean:k=16,steps=2")


def main() -> None:
    """Evaluate all arms with both tools, and write what they found."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="of LeRobot, trained on PushT's states (docs/train.md)")
    parser.add_argument("--runs", type=Path, default=Path("out") / NAME, help="folder for both tools' results")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--batch", type=int, default=1, help="episodes that are rolled out together")
    given = parser.parse_args()
    ours = run_keystone(given.checkpoint, given.runs / "keystone", given.episodes, given.batch)
    theirs = {
        arm: run_lerobot(given.checkpoint, given.runs / "lerobot", given.episodes, given.batch, arm)
        for arm in (*ARMS, None)
    }
    command = f"python -m benchmarks.{NAME} CHECKPOINT --episodes {given.episodes} --batch {given.batch}"
    rows = [row(ours, theirs, arm) for arm in ARMS]
    plain = {"arm": "without KeyStone", "lerobot": successes(theirs[None])}
    found = {"training": training(given.checkpoint), "arms": rows, "plain": plain}
    write_json(NAME, {"machine": describe_machine(command), **found}, False)
    differing = sum(one["differing"] for one in rows)
    print(f"{differing} of {len(ARMS) * given.episodes} episodes differ between lerobot-eval and keystone eval")


def training(checkpoint: Path) -> dict[str, int]:
    """Size and number of the batches that `lerobot-train` trained on."""
    config = json.loads((checkpoint / "train_config.json").read_text())
    return {name: config[name] for name in ("steps", "batch_size")}


def row(ours: dict[str, Outcomes], theirs: dict[str | None, Outcomes], arm: str) -> dict[str, Any]:
    """What both tools found for an arm, and its difference to the policy as it is."""
    found = compare(ours["first"], ours[arm])
    pair = successes(ours[arm]), successes(theirs[arm])
    time = ours[arm].time
    return {
        "arm": arm,
        "keystone": pair[0],
        "lerobot": pair[1],
        "differing": sum(one != other for one, other in zip(*pair, strict=True)),
        "difference": found.overall.difference,
        "interval": found.overall.interval,
        "round_ms": None if time is None else time[1],
    }


def successes(outcomes: Outcomes) -> list[bool]:
    """Of each episode, in order."""
    return [one.success for one in sorted(outcomes.episodes, key=lambda one: one.episode)]


def run_keystone(checkpoint: Path, out: Path, episodes: int, batch: int) -> dict[str, Outcomes]:
    """All arms by `keystone eval`, which resumes."""
    arms = [word for arm in ARMS for word in ("--arm", arm)]
    words = ["--env", f"lerobot:pusht?obs_type={OBSERVATIONS}", "--episodes", str(episodes), "--shard", str(batch)]
    _run("keystone", "eval", "--policy", str(checkpoint), *words, *arms, "--out", str(out))
    return {outcomes.name: outcomes for outcomes in read(out)}


def run_lerobot(checkpoint: Path, folder: Path, episodes: int, batch: int, arm: str | None) -> Outcomes:
    """One arm by `lerobot-eval`; None is without KeyStone, with noise of torch's generator."""
    out = folder / (arm or "plain")
    if not (out / "eval_info.json").exists():
        keystone = [f"--policy.keystone.spec={arm}", "--policy.keystone.seed=0"] if arm else []
        words = ["--env.type=pusht", f"--env.obs_type={OBSERVATIONS}", "--eval.use_async_envs=false", "--seed=0"]
        size = [f"--eval.n_episodes={episodes}", f"--eval.batch_size={batch}"]
        _run("lerobot-eval", f"--policy.path={checkpoint}", *keystone, *words, *size, f"--output_dir={out}")
    return read(out)[0]


def _run(command: str, *words: str) -> None:
    """A command of this environment, on one thread."""
    variables = {"OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}
    subprocess.run([str(Path(sys.executable).with_name(command)), *words], env={**os.environ, **variables}, check=True)


if __name__ == "__main__":
    main()
