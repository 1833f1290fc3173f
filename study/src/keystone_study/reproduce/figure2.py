"""Figure 2: latency and memory of a round against K."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from keystone_robotics.files import write_file
from keystone_robotics.profiling import Profile, profile
from keystone_robotics.report.cost import draw_cost
from keystone_robotics.report.style import save

POLICIES = ("metaworld-mixed", "metaworld-mixed-diffusion")
KS = (1, 4, 8, 16, 32)
ROUNDS, QUICK_ROUNDS = 30, 5


def draw_figure2(out: Path, console: Console, quick: bool) -> list[Path]:
    """Profile one policy of each class, and draw.

    Writes ``figure2-POLICY.png``, ``.svg``, ``figure2.json`` and ``figure2.md``. Measurements are kept in ``runs/figure2``; an
    interrupted run resumes.
    """
    paths: list[Path] = []
    found: list[Profile] = []
    for policy in POLICIES:
        console.print(f"profiling {policy}")
        folder = out / "runs" / "figure2" / policy
        folder.mkdir(parents=True, exist_ok=True)
        one = profile(policy, k=KS, rounds=QUICK_ROUNDS if quick else ROUNDS, out=folder, profiles=folder)
        paths += save(draw_cost(one), out, f"figure2-{policy}")
        found.append(one)
    command = "keystone reproduce figure2" + (" --quick" if quick else "")
    profiles = [one.as_dict() for one in found]
    write_file(out / "figure2.json", json.dumps({"command": command, "profiles": profiles}, indent=2) + "\n")
    tables = "\n\n".join(f"## {one.policy}\n\n```\n{one}\n```" for one in found)
    write_file(
        out / "figure2.md",
        f"# Figure 2: latency and memory of a round against K\n\nMade by `{command}`, on small policies; the same for "
        f"yours, on your machine: `keystone profile POLICY`.\n\n{tables}\n",
    )
    return paths
