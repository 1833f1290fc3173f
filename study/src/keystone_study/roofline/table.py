"""The predictions as Markdown. Every table states that it is a model, not a measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from keystone_robotics.tables import as_markdown
from keystone_study.roofline.devices import DEVICES, Device
from keystone_study.roofline.models import MODELS, Model
from keystone_study.roofline.predict import (
    BANDWIDTH_EFFICIENCY,
    COMPUTE_EFFICIENCY,
    MAX_K,
    ExecutionMode,
    RoundTime,
    largest_k,
    round_time,
)

MODES = tuple(ExecutionMode(graphs, shared) for graphs in (False, True) for shared in (False, True))
NOTE = "A model on paper (roofline), not a measurement."
KS = (1, 2, 4, 8, 16, 32)
#: Mark of a model whose operations are estimated.
ESTIMATED = "≈"

#: Measurements by others, beside which the predictions are printed.
PUBLISHED_SOURCE = (
    "NVIDIA, Isaac-GR00T, scripts/deployment/README.md of release N1.6 "
    "(GR00T-N1.6-3B, 4 denoising steps, one view): columns Backbone and Action Head"
)


class PublishedTime(NamedTuple):
    """Milliseconds of GR00T N1.6 at K = 1: backbone, action head eagerly, action head with torch.compile."""

    backbone: float
    eager: float
    compiled: float


PUBLISHED_GROOT: dict[str, PublishedTime] = {
    "h100": PublishedTime(23, 49, 11),
    "4090": PublishedTime(25, 55, 17),
    "5090": PublishedTime(18, 38, 16),
    "thor": PublishedTime(38, 74, 61),
    "orin": PublishedTime(93, 202, 101),
}


def latency_table(model: Model, device: Device, ks: Sequence[int] = KS, tolerance: float = 0.05) -> list[str]:
    """Milliseconds of a round against K in each mode, and the largest K within the tolerance."""
    rows = []
    for k in ks:
        times = [(round_time(model, device, k, mode).total, round_time(model, device, 1, mode).total) for mode in MODES]
        rows.append([str(k), *(f"{1e3 * time:.1f} ({time / one:.2f}×)" for time, one in times)])
    best = [_largest(model, device, mode, tolerance) for mode in MODES]
    rows.append([f"largest K within {tolerance:.0%}", *best])
    return [
        f"{NOTE} {model.title} on {device.title}: milliseconds of a round (relative to K = 1 in the same way)",
        "",
        *_lines([["K", *map(str, MODES)], *rows]),
    ]


def operations_table() -> list[str]:
    """Operations of a denoising step of the paper's six models."""
    rows = [[_title(model), str(model.ops), str(model.shared_ops)] for model in MODELS.values()]
    return _lines([["operations of a step", "plain", "shared"], *rows])


def largest_k_table(device: Device, tolerance: float = 0.05) -> list[str]:
    """The largest K of the paper's six models on a device, beside the K that the paper uses."""
    rows = []
    for model in MODELS.values():
        one = round_time(model, device, 1)
        rows.append(
            [
                _title(model),
                str(model.paper_k),
                *(_largest(model, device, mode, tolerance) for mode in MODES),
                f"{1e3 * one.encode:.0f} + {1e3 * one.launches:.0f}",
                f"{1e3 * one.work:.0f}",
            ]
        )
    header = ["model", "K in the paper", *map(str, MODES), "encode + launches, ms", "GPU work, ms"]
    title = (
        f"{NOTE} Largest K within {tolerance:.0%} of K = 1 in the same way, on {device.title}; the last two columns are of a "
        f"plain eager round with K = 1; {ESTIMATED} operations of a step estimated, at least in part, instead of counted"
    )
    return [title, "", *_lines([header, *rows])]


def published_table() -> list[str]:
    """GR00T N1.6 at K = 1: the model beside what NVIDIA published."""
    model = MODELS["groot"]
    rows = []
    for name, measured in PUBLISHED_GROOT.items():
        device = DEVICES[name]
        eager, graphs = (round_time(model, device, 1, ExecutionMode(graphs=graphs)) for graphs in (False, True))
        rows.append(
            [
                device.title,
                f"{measured.eager:g}",
                f"{1e3 * eager.denoise:.0f}",
                f"{measured.compiled:g}",
                f"{1e3 * graphs.denoise:.1f}",
                f"{measured.backbone:g}",
                f"{1e3 * eager.encode:.0f}",
            ]
        )
    header = [
        "device",
        "head, eager: measured",
        "model",
        "head, compiled: measured",
        "model",
        "backbone: measured",
        "model",
    ]
    return [
        f"{NOTE} Milliseconds of GR00T N1.6 at K = 1, beside measurements by {PUBLISHED_SOURCE}",
        "",
        *_lines([header, *rows]),
    ]


def as_dict(model: Model, device: Device, ks: Sequence[int] = KS, tolerance: float = 0.05) -> dict[str, Any]:
    """The prediction for JSON."""
    return {
        "note": NOTE,
        "model": model.title,
        "device": device.title,
        "tolerance": tolerance,
        "paper_k": model.paper_k,
        "max_k_searched": MAX_K,
        "modes": {
            str(mode): {
                "largest_k": largest_k(model, device, mode, tolerance),
                "milliseconds": {str(k): _milliseconds(round_time(model, device, k, mode)) for k in ks},
            }
            for mode in MODES
        },
        "assumed": {
            "device": dataclasses.asdict(device),
            "model": dataclasses.asdict(model),
            "share_of_bandwidth": BANDWIDTH_EFFICIENCY,
            "share_of_arithmetic": COMPUTE_EFFICIENCY,
        },
    }


def assumptions(device: Device) -> str:
    """The assumptions about a device, in one sentence."""
    return (
        f"Assumed of {device.title}: {device.bandwidth:g} GB/s, of which {BANDWIDTH_EFFICIENCY:.0%} is reached; "
        f"{device.tflops:g} TFLOP/s, of which {COMPUTE_EFFICIENCY:.0%} is reached; {device.eager_us:g} µs to launch an "
        f"operation, {device.graph_us:g} µs in a graph."
    )


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    return as_markdown(rows).splitlines()


def _milliseconds(time: RoundTime) -> dict[str, float]:
    parts = {"total": time.total, "encode": time.encode, "launches": time.launches, "work": time.work}
    return {name: 1e3 * seconds for name, seconds in parts.items()}


def _largest(model: Model, device: Device, mode: ExecutionMode, tolerance: float) -> str:
    k = largest_k(model, device, mode, tolerance)
    return str(k) if k < MAX_K else f"{MAX_K} or more"


def _title(model: Model) -> str:
    return model.title if model.counted else f"{model.title} {ESTIMATED}"
