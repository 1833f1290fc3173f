"""``keystone roofline``: predict the cost of K on a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import tyro

from keystone_robotics.errors import KeystoneError

GLOSSARY = """\
Eager: PyTorch launches operations one by one; graphs: the launches of a round are captured and replayed (CUDA graphs,
TensorRT). Plain: the context is repeated for every candidate; shared: it is read once for all (docs/fast.md). Assumptions:
docs/roofline.md."""


def run(
    model: str | None = None,
    device: str = "a6000",
    k: tuple[int, ...] | None = None,
    tolerance: float = 0.05,
    bandwidth: float | None = None,
    tflops: float | None = None,
    eager_us: float | None = None,
    graph_us: float | None = None,
    json_path: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Predict the time of a round against K from public numbers. A model, not a measurement; `keystone profile` measures.

    Args:
        model: pi05, smolvla, groot, xvla, starvla or fastwam. Without it: the largest K of all six, and GR00T beside NVIDIA's
            measurements.
        device: a6000, 3090, 4090, 5090, l40s, a100, h100, thor or orin; or any name, with --bandwidth and --tflops.
        k: numbers of candidates per round, for one model; default 1, 2, 4, 8, 16 and 32.
        tolerance: how much longer than with K = 1 a round may take, as a fraction.
        bandwidth: memory bandwidth in GB/s; default the device's. The same holds for the next three.
        tflops: dense bfloat16 with float32 accumulation, in TFLOP/s (half of the figure "with sparsity").
        eager_us: microseconds of host time for one operation of eager PyTorch; 18 for an unknown device.
        graph_us: microseconds for one kernel of a captured graph; 3 for an unknown device.
        json_path: write the predictions to this JSON file.
    """
    from rich.console import Console

    from keystone_robotics.files import atomic_write
    from keystone_study.roofline.devices import find_device
    from keystone_study.roofline.models import MODELS, find_model
    from keystone_study.roofline.table import as_dict, assumptions, largest_k_table, latency_table, published_table

    asked, k = k is not None, (1, 2, 4, 8, 16, 32) if k is None else k
    if min(k, default=0) < 1:
        raise KeystoneError(f"--k {' '.join(map(str, k))}: expected whole numbers, 1 or more")
    if asked and model is None and json_path is None:
        raise KeystoneError("--k needs --model: the table of all models shows the largest K of each")
    if not 0 <= tolerance < float("inf"):
        raise KeystoneError(f"--tolerance {tolerance}: expected a fraction, 0 or more (0.05 is five per cent)")
    target = find_device(device, bandwidth, tflops, eager_us, graph_us)
    chosen = list(MODELS.values()) if model is None else [find_model(model)]
    if model is None:
        lines = [*largest_k_table(target, tolerance), "", *published_table()]
    else:
        lines = latency_table(chosen[0], target, k, tolerance)
        lines += ["", f"The paper uses K = {chosen[0].paper_k}."]
    lines += ["", assumptions(target), GLOSSARY]
    Console(highlight=False, markup=False, soft_wrap=True).print("\n".join(lines))
    if json_path is not None:
        try:
            json_path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(json_path) as draft:
                predictions = [as_dict(one, target, k, tolerance) for one in chosen]
                draft.write_text(json.dumps({"predictions": predictions}, indent=2) + "\n")
        except OSError as error:
            raise KeystoneError(f"cannot write {json_path}: {error.strerror}") from None
