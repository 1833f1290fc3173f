"""``keystone demo``: one round where the candidates disagree and one where they do not, in a table and a figure."""

from __future__ import annotations

from pathlib import Path

from keystone.errors import KeystoneError


def run(out: Path = Path("out")) -> None:
    """Select among made-up candidates that pass an obstacle on two sides, and draw what happened.

    Args:
        out: folder for demo.png and demo.svg; made if it does not exist.
    """
    if out.exists() and not out.is_dir():
        raise KeystoneError(f"--out {out} is a file: give a folder")
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    import keystone
    from keystone.report import example, style

    rounds = {"two minds": example.two_minds(), "one mind": example.one_mind()}
    selections = {name: keystone.select(candidates) for name, candidates in rounds.items()}
    columns = ("Policy", "Rule", "Index", "Consensus", "Spread", "Chosen path", "Mean of all")
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name, selection in selections.items():
        outcomes = (_outcome(example.clearance(path)) for path in (selection.chunk, rounds[name].mean(0)))
        table.add_row(
            name,
            selection.rule,
            str(selection.index),
            f"{selection.consensus:.0%}",
            f"{selection.spread:.2f}",
            *outcomes,
        )
    figure = example.draw(rounds["two minds"], selections["two minds"])
    try:
        out.mkdir(parents=True, exist_ok=True)
        paths = style.save(figure, out, "demo")
    except OSError as error:
        raise KeystoneError(f"cannot write to --out {out}: {error.strerror}") from None
    console = Console()
    console.print(table)
    console.print("Wrote " + " and ".join(map(str, paths)), soft_wrap=True, highlight=False)


def _outcome(clearance: float) -> str:
    return f"clears by {clearance:.0f} cm" if clearance > 0 else f"[bold red]hits by {-clearance:.0f} cm[/]"
