"""``python -m benchmarks.whole_round_upstream NAME …``: `benchmarks.whole_round` on other projects' own code.

Needs the checkouts and environments of docs/upstream.md, so it is not part of ``make bench``; ``make bench-upstream`` runs it.
The rows of the named checkouts are replaced in benchmarks/results/whole_round_upstream.json. GR00T and StarVLA are their action
heads: a vision-language model of theirs would have to be downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import RESULTS, describe_machine, write_json
from benchmarks.whole_round import compare

RESULT = "whole_round_upstream"
sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("tests", "upstream")]


class Recipe(NamedTuple):
    """One case: how to build a policy and call it; see `benchmarks.whole_round.compare`."""

    build: Callable[[], Any]
    predict: Callable[[Any, int], Any]
    options: dict[str, Any]


def recipes(checkout: str) -> dict[str, Recipe]:
    """The cases of a checkout, by the adapter's name and what tells several apart."""
    if checkout.startswith("Isaac-GR00T"):
        return {"isaac-groot": _groot(checkout)}
    return {"starVLA": _starvla, "X-VLA": _x_vla, "FastWAM": _fast_wam, "openpi": _openpi}[checkout]()


def _groot(checkout: str) -> Recipe:
    import groot_head

    builders = {
        "Isaac-GR00T-N1.5": groot_head.build_n1d5,
        "Isaac-GR00T-N1.6": lambda: groot_head.build_n1d6("AlternateVLDiT"),
        "Isaac-GR00T-N1.7": lambda: groot_head.build_n1d7("AlternateVLDiT"),
    }
    return Recipe(builders[checkout], groot_head.predict, {"space": groot_head.REAL})


def _starvla() -> dict[str, Recipe]:
    import starvla_heads

    def of(kind: str) -> Recipe:
        return Recipe(
            lambda: starvla_heads.build(kind, masked=True),
            lambda framework, rows: framework.predict_action(rows, with_state=True),
            {},
        )

    return {f"starvla, {kind} head": of(kind) for kind in ("GR00T", "Layerwise")}


def _x_vla() -> dict[str, Recipe]:
    import xvla_model

    def build() -> Any:
        return xvla_model.build(action_mode="auto", real_action_dim=14, max_action_dim=20)

    return {"x-vla": Recipe(build, xvla_model.predict, {})}


def _fast_wam() -> dict[str, Recipe]:
    import fast_wam_model

    return {
        "fast-wam": Recipe(fast_wam_model.build, lambda model, rows: fast_wam_model.predict(model), {"batches": False})
    }


def _openpi() -> dict[str, Recipe]:
    import copy

    import openpi_tiny

    observation = openpi_tiny.observation()

    def of(model: Callable[..., Any], pytorch: bool, options: dict[str, Any]) -> Recipe:
        return Recipe(
            lambda: openpi_tiny.libero_policy(copy.deepcopy(model(pi05=True)), is_pytorch=pytorch),
            lambda policy, rows: policy.infer(observation),
            {"batches": False, **options},  # its `Policy` answers one observation at a time
        )

    return {
        "openpi, π0.5": of(openpi_tiny.torch_model, True, {}),
        "openpi-jax, π0.5": of(openpi_tiny.jax_model, False, {"clock": time.process_time}),  # XLA has threads
    }


def measure(checkout: str) -> list[dict[str, Any]]:
    """One row for each case of a checkout."""
    import torch
    from checkouts import commit_of, importable

    torch.set_num_threads(1)
    folder = importable(checkout, *(("src",) if checkout in ("FastWAM", "openpi") else ()))
    machine = describe_machine("")
    of_checkout = {
        "checkout": checkout,
        "commit": commit_of(folder),
        "date": machine["date"],
        "torch": machine["torch"],
    }
    return [
        {**compare(f"{checkout}: {name}", recipe.build, recipe.predict, rounds=7, **recipe.options), **of_checkout}
        for name, recipe in recipes(checkout).items()
    ]


def main(checkouts: list[str]) -> None:
    """Measure, and replace the rows of these checkouts."""
    path = RESULTS / f"{RESULT}.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    for checkout in checkouts:
        found = measure(checkout)
        print(json.dumps(found, indent=1))
        known = [row for row in known if row["checkout"] != checkout] + found
    rows = sorted(known, key=lambda row: row["case"])
    write_json(RESULT, {"machine": describe_machine("make bench-upstream"), "rows": rows}, quick=False)


if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1", XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{RESULT}", description=__doc__)
    parser.add_argument("checkouts", nargs="+", metavar="NAME", help="of upstream/checkouts.py; one for each process")
    main(parser.parse_args().checkouts)
