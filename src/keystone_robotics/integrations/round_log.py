"""One JSON line per round, for plots and as evidence that candidates were drawn."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keystone_robotics.attach import attach
from keystone_robotics.handle import Chosen, Handle
from keystone_robotics.spec import Spec


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
        """Append the line of a round, with further entries."""
        with self.path.open("a") as file:
            file.write(json.dumps({**more, **summary(chosen)}) + "\n")


def attach_with_log(policy: Any, spec: Spec, environ: Mapping[str, str] = os.environ) -> Handle:
    """`keystone.attach`; with ``KEYSTONE_LOG=path`` in the environment, every round appends a line there."""
    handle = attach(policy, spec)
    path = environ.get("KEYSTONE_LOG", "").strip()
    if path:
        handle.on_round = RoundLog(path)
    return handle


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
