"""``keystone inspect``: a policy on the frames of a dataset, for robots without a simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from keystone_robotics.cli.flags import Arm, flat
from keystone_robotics.errors import KeystoneError
from keystone_robotics.spec import Spec


def run(
    checkpoint: Annotated[str, tyro.conf.Positional],
    dataset: Annotated[str, tyro.conf.Positional],
    arm: Arm = (),
    frames: int = 200,
    episodes: tuple[int, ...] = (),
    out: Path = Path("out/inspect"),
    recordings: int = 3,
    seed: int = 0,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Draw candidates for frames of a LeRobotDataset: where does the policy disagree with itself, into how many ways, in
    which dimensions, and how far is each arm's choice from the demonstrator's.

    Distance to a demonstration is not success. Writes index.html, inspect.json, and the worst episodes as .rrd if Rerun is
    installed.

    Args:
        checkpoint: folder or hub name of a LeRobot policy.
        dataset: folder or hub name of a LeRobotDataset (v3).
        arm: RULE or RULE:name=value,…; may be repeated. Default: first, first:steps=2, first:temperature=0.6, keystone:k=16,
            core-mean:k=16. The distances of the others are compared with the first's.
        frames: spread evenly over the dataset.
        episodes: only these of the dataset; default all.
        out: folder to write.
        recordings: how many episodes to write as .rrd.
        seed: of the noise.
        device: of the policy; default its checkpoint's.
        trust_remote_code: run code that the checkpoint names but LeRobot did not install (docs/security.md).
    """
    arms = [Spec.parse(one) for one in flat(arm)]  # before anything that takes time
    for one in arms:
        if one.k == "auto" or one.seed is not None:
            raise KeystoneError(f"arm {one}: expected a number of candidates, or 4..16, and no seed (give --seed)")
    if frames < 1:
        raise KeystoneError(f"--frames {frames}: expected at least 1")
    from keystone_robotics.evaluate.dataset import check_dataset, open_dataset
    from keystone_robotics.policies.load import check_names

    check_names(checkpoint)
    check_dataset(dataset)
    import json

    from rich.console import Console
    from rich.progress import Progress

    from keystone_robotics.evaluate.demonstrations import DEFAULT_ARMS, choose_frames, inspect_frames
    from keystone_robotics.files import write_file
    from keystone_robotics.policies import load_agent
    from keystone_robotics.report.inspection import (
        arm_rows,
        dimension_rows,
        page,
        record_episodes,
        summarise,
        worst_rows,
    )
    from keystone_robotics.tables import as_text
    from keystone_robotics.view.sdk import RerunUnavailable

    console = Console(highlight=False, markup=False, soft_wrap=True)
    arms = arms or [Spec.parse(one) for one in DEFAULT_ARMS]
    data = open_dataset(dataset, episodes)
    agent = load_agent(checkpoint, device, trust_remote_code)
    indices = choose_frames(data, frames)
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("drawing candidates", total=len(indices))
        found = list(inspect_frames(agent, data, arms, indices, seed, lambda done: bar.update(task, completed=done)))
    main = max(arms, key=lambda one: one.most_k or 0)
    names = data.meta.features["action"].get("names")
    width = len(found[0].spread)
    named = isinstance(names, list) and len(names) == width
    dims = [str(name) for name in names] if named else [f"dimension {number}" for number in range(width)]
    summary = summarise(found, dims, {"checkpoint": checkpoint, "dataset": dataset, "main": str(main)})
    console.print(as_text(arm_rows(summary)))
    if summary["not_compared"]:
        console.print(summary["not_compared"], style="bold yellow")
    console.print(f"\n{summary['note']}\n", style="bold yellow")
    console.print(as_text(worst_rows(summary)) + "\n")
    console.print(as_text(dimension_rows(summary)) + "\n")
    out.mkdir(parents=True, exist_ok=True)
    write_file(out / "inspect.json", json.dumps(summary, indent=1) + "\n")
    write_file(out / "index.html", page(summary, found))
    console.print(f"wrote {out / 'index.html'} and inspect.json")
    try:
        for path in record_episodes(found, out, dims, float(data.meta.fps), recordings):
            console.print(f"wrote {path}")
    except RerunUnavailable as error:
        console.print(f"no recordings: {error}")
