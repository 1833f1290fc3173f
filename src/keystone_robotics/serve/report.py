"""What a reply says about its round, in plain numbers: the same in every protocol."""

from __future__ import annotations

from typing import Any

from keystone_robotics.handle import RoundEvent
from keystone_robotics.integrations.round_log import BY_ROW


def describe_row(event: RoundEvent | None, row: int) -> dict[str, Any]:
    """One row of a round; K = 1 if nothing was selected."""
    if event is None or not event.seeds:  # the policy's own code ran
        return {"k": 1}
    selection = event.selection
    values = {name: getattr(selection, name)[row].tolist() for name in BY_ROW}
    return {
        "k": event.k,
        "rule": selection.rule,
        "path": event.path,
        **values,
        "sizes": [size for size in values["sizes"] if size],
        "seed": event.seeds[row] if row < len(event.seeds) else event.seeds[0],
        "sampling_ms": round(1000 * event.times.sample, 3),
        "selection_ms": round(1000 * event.times.select, 3),
    }
