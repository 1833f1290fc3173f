"""``python -m benchmarks.inspect_policy``: `keystone inspect` of a trained policy on demonstrations that it never saw.

Writes inspect.json to benchmarks/results. The policy is LeRobot's Diffusion Policy that comes with the study; the
demonstrations are of the same scripted expert with another seed, written by LeRobot's own writer. What is finished in
``--runs`` is kept.
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
from keystone_robotics.policies.load import RECORD, find_policy

POLICY = "metaworld-mixed-diffusion"
SEED = 1  #: of the demonstrations; the policy's were made with 0
EACH = 4  #: demonstrations of each task
FRAMES = 240


def main() -> None:
    """Demonstrate, inspect and write what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inspect_policy", description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("out") / "inspect_policy", help="folder for what is made")
    runs = parser.parse_args().runs
    folder = find_policy(POLICY)
    assert folder is not None
    trained = json.loads((folder / RECORD).read_text())
    assert trained["seed"] != SEED
    data, found = runs / "demonstrations", runs / "inspect"
    if not data.exists():
        words = ["--env", trained["benchmark"], "--tasks", *trained["tasks"], "--regime", trained["regime"]]
        draft = runs / f"draft-{os.getpid()}"  # an interrupted one is no dataset
        size = ["--demonstrations", str(EACH), "--seed", str(SEED)]
        _run("demonstrations", *words, *size, "--demos", str(runs / "demos"), "--out", str(draft))
        draft.rename(data)
    if not (found / "inspect.json").exists():
        _run("inspect", POLICY, str(data), "--frames", str(FRAMES), "--out", str(found))
    summary: dict[str, Any] = json.loads((found / "inspect.json").read_text())
    summary |= {
        "dataset": f"{EACH} {trained['regime']} demonstrations of each of {len(trained['tasks'])} tasks, seed {SEED}",
        "episodes": len(summary["episodes"]),
        "training_steps": trained["iterations"],
        "page_bytes": (found / "index.html").stat().st_size,
    }
    path = write_json("inspect", {"machine": describe_machine("python -m benchmarks.inspect_policy"), **summary}, False)
    print(f"wrote {path}")


def _run(*words: str) -> None:
    """A command of this environment, on one thread."""
    keystone = str(Path(sys.executable).with_name("keystone"))
    subprocess.run([keystone, *words], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


if __name__ == "__main__":
    main()
