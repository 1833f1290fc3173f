"""Where results are written, and how: never half a file, which would stop whoever reads all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keystone_robotics.files import written_whole

RESULTS = Path(__file__).parent / "results"


def results_folder(quick: bool) -> Path:
    """benchmarks/results, or its folder ``quick``; made if it is not there."""
    folder = RESULTS / "quick" if quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_json(name: str, found: Any, quick: bool) -> Path:
    """Write a result as ``name``.json; its path."""
    path = results_folder(quick) / f"{name}.json"
    with written_whole(path) as draft:
        draft.write_text(json.dumps(found, indent=1) + "\n")
    return path
