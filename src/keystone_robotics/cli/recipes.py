"""``keystone recipes``: the commands for the models and workloads of the paper, and for others."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import tyro

from keystone_robotics.cli.flags import Arm, flat
from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.files import write_file

STEPS = (1, 2, 5)  #: denoising steps that --collect measures beside the policy's own

#: In an installed package the recipes are next to the code, in a clone in docs/recipes; see pyproject.toml.
_FOLDERS = (Path(__file__).parents[1] / "_recipes", Path(__file__).parents[3] / "docs" / "recipes")


def find() -> dict[str, Path]:
    """The recipes by name."""
    for folder in _FOLDERS:
        if found := {path.stem: path for path in sorted(folder.glob("*.md"))}:
            return found
    raise KeystoneError(f"the recipes are missing; looked in {' and '.join(map(str, _FOLDERS))}")


def run(
    name: Annotated[str | None, tyro.conf.Positional] = None,
    collect: Path | None = None,
    policy: str | None = None,
    env: str | None = None,
    episodes: int | None = None,
    repeats: int | None = None,
    arm: Arm = (),
    results: tuple[Path, ...] = (),
    k: tuple[int, ...] = (),
    steps: tuple[int, ...] = STEPS,
    rounds: int | None = None,
    device: str | None = None,
    workers: int | None = None,
) -> None:
    """Print the commands for a model and a workload: baseline, KeyStone, profile, compare; or run and collect them.

    With --collect, `keystone profile` and `keystone eval` run here as the recipe says, and one file holds versions, device,
    latency against K × steps and success with intervals (docs/gpu.md). Where the recipe's benchmark runs elsewhere, --policy
    says what to profile, and --results what the benchmark wrote. After an interruption the same command resumes.

    Args:
        name: recipe to print (Markdown); if omitted, all are listed.
        collect: run the recipe and write this JSON file; its episodes and profile are in a folder of the same name beside it.
        policy: with --collect, another checkpoint than the recipe's, or package.module:function that makes a policy and an
            observation, as for `keystone profile`.
        env: another environment.
        episodes: another number of initial states per task.
        repeats: another number of rollouts of every initial state.
        arm: other arms than the recipe's, as for `keystone eval`.
        results: instead of `keystone eval`, results of vla-eval or lerobot-eval, or tables of episodes, as for
            `keystone compare`: one for each arm.
        k: other numbers of candidates to profile.
        steps: numbers of denoising steps to profile beside the policy's own.
        rounds: measurements of each.
        device: another device than the recipe's.
        workers: as for `keystone eval`.
    """
    from rich.console import Console

    recipes = find()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if name is None:
        width = max(map(len, recipes))
        for one, path in recipes.items():
            console.print(f"{one:{width}}  {path.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}")
        console.print("keystone recipes NAME prints one")
        return
    if name not in recipes:
        raise KeystoneError(f"no recipe {name!r}: {nearest_name(name, recipes)}")
    text = recipes[name].read_text(encoding="utf-8")
    if collect is None:
        console.print(text, end="")
        return
    from keystone_robotics.report.collect import collected, paper_k, recipe_command, with_options

    folder = collect.with_suffix("")
    if folder == collect:
        raise KeystoneError(f"--collect {collect}: expected a file name that ends in .json")
    own_profile, own_evaluation = (recipe_command(text, command) for command in ("profile", "eval"))
    if own_profile is None and policy is None:
        raise KeystoneError(f"the recipe {name} has no `keystone profile`: --policy CHECKPOINT says what to profile")
    if own_evaluation is None and env is None and not results:
        raise KeystoneError(
            f"the benchmark of the recipe {name} runs elsewhere: give what it wrote, --results FOLDER …, or an --env"
        )
    profile = own_profile or ["profile", "", "--k", "1", "2", "4", "8", "16"]
    arms = ["first", "first:steps=2", f"keystone:k={paper_k(text)}", "core-mean:k=16,steps=2"]
    evaluation = own_evaluation or ["eval", "--policy", str(policy), *(word for one in arms for word in ("--arm", one))]
    shared = {"--device": _words(device)}
    measured = {"--k": _words(*k), "--steps": _words(*steps), "--rounds": _words(rounds)}
    commands = [
        with_options(
            [profile[0], policy or profile[1], *profile[2:]],
            {**measured, "--out": [str(folder / "profile")], **shared},
        )
    ]
    if not results:
        other = {
            "--policy": _words(policy), "--env": _words(env), "--episodes": _words(episodes), "--repeats": _words(repeats),
            "--arm": list(flat(arm)), "--workers": _words(workers), "--out": [str(folder / "run")], **shared,
        }  # fmt: skip
        commands.append(with_options(evaluation, other))
    from keystone_robotics.cli import main

    for words in commands:
        console.print("keystone " + shlex.join(words), style="bold")
        if code := main(words):
            raise SystemExit(code)
    found = collected(name, folder / "profile", None if results else folder / "run", results)
    write_file(collect, json.dumps(found, indent=1) + "\n")
    console.print(f"wrote {collect}: attach it to an issue, docs/gpu.md says how")


def _words(*values: object) -> list[str]:
    return [str(value) for value in values if value is not None]
