"""``keystone recipes``: the commands for every model and workload of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from keystone_robotics.errors import KeystoneError, nearest_name

#: In an installed package the recipes are next to the code, in a clone in docs/recipes; see pyproject.toml.
_FOLDERS = (Path(__file__).parents[1] / "_recipes", Path(__file__).parents[3] / "docs" / "recipes")


def find() -> dict[str, Path]:
    """The recipes by name."""
    for folder in _FOLDERS:
        if found := {path.stem: path for path in sorted(folder.glob("*.md"))}:
            return found
    raise KeystoneError(f"the recipes are missing; looked in {' and '.join(map(str, _FOLDERS))}")


def run(name: Annotated[str | None, tyro.conf.Positional] = None) -> None:
    """Print the commands for a model and workload of the paper: baseline, KeyStone, profile, compare.

    Args:
        name: recipe to print (Markdown); if omitted, all are listed.
    """
    from rich.console import Console

    recipes = find()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if name is None:
        width = max(map(len, recipes))
        for one, path in recipes.items():
            console.print(f"{one:{width}}  {path.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}")
        console.print("keystone recipes NAME prints one")
    elif name in recipes:
        console.print(recipes[name].read_text(encoding="utf-8"), end="")
    else:
        raise KeystoneError(f"no recipe {name!r}: {nearest_name(name, recipes)}")
