"""One JSON line for every round, for plots and for proof that candidates were drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keystone_robotics.handle import Chosen


class RoundLog:
    """A function for `Handle.on_round` that appends to a file; lists hold one entry per row of the batch.

    The file is opened for each line, so the log can be copied with its policy and read while it grows.

    >>> import tempfile, torch, keystone_robotics as keystone
    >>> class Policy(torch.nn.Module):
    ...     def act(self):
    ...         return torch.randn(1, 8, 2)
    >>> path = Path(tempfile.mkdtemp()) / "rounds.jsonl"
    >>> policy = Policy()
    >>> keystone.attach(policy, k=4, rule="medoid", site="act").on_round = RoundLog(path)
    >>> chunk = policy.act()
    >>> sorted(json.loads(path.read_text()))
    ['consensus', 'index', 'k', 'round', 'rule', 'sampling_seconds', 'selection_seconds', 'sizes', 'spread']
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, chosen: Chosen, **more: Any) -> None:
        """Append the line of a round, and whatever else is known about it."""
        with self.path.open("a") as file:
            file.write(json.dumps({**more, **summary(chosen)}) + "\n")


def summary(chosen: Chosen) -> dict[str, Any]:
    """A round in plain numbers."""
    selection = chosen.selection
    return {
        "round": chosen.number,
        "k": chosen.candidates.shape[1],
        "rule": selection.rule,
        "index": selection.index.tolist(),
        "sizes": selection.sizes.tolist(),
        "consensus": selection.consensus.tolist(),
        "spread": selection.spread.tolist(),
        "sampling_seconds": round(chosen.sampling_seconds, 6),
        "selection_seconds": round(chosen.selection_seconds, 6),
    }
