"""The predictions as Markdown. Every table says that it is a model, not a measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from keystone_robotics.tables import as_markdown
from keystone_study.roofline.devices import DEVICES, Device
from keystone_study.roofline.models import MODELS, Model
from keystone_study.roofline.predict import ARITHMETIC, BANDWIDTH, MOST, RoundTime, Way, largest_k, round_time
from keystone_study.roofline.published import GROOT, SOURCE

WAYS = tuple(Way(graphs, shared) for graphs in (False, True) for shared in (False, True))
NOTE = "A model on paper (roofline), not a measurement."
KS = (1, 2, 4, 8, 16, 32)
#: Beside a model whose operations were not all counted.
ESTIMATED = "≈"


def against_k(model: Model, device: Device, ks: Sequence[int] = KS, tolerance: float = 0.05) -> list[str]:
    """Milliseconds of a round against K, in each way, and the largest K worth having."""
    rows = []
    for k in ks:
        times = [(round_time(model, device, k, way).total, round_time(model, device, 1, way).total) for way in WAYS]
        rows.append([str(k), *(f"{1e3 * time:.1f} ({time / one:.2f}×)" for time, one in times)])
    best = [_largest(model, device, way, tolerance) for way in WAYS]
    rows.append([f"largest K within {tolerance:.0%}", *best])
    return [
        f"{NOTE} {model.title} on {device.title}: milliseconds of a round (relative to K = 1 in the same way)",
        "",
        *as_markdown([["K", *map(str, WAYS)], *rows]).splitlines(),
    ]


def operations() -> list[str]:
    """Operations of a denoising step of the paper's six models."""
    rows = [[_title(model), str(model.ops), str(model.shared_ops)] for model in MODELS.values()]
    return as_markdown([["operations of a step", "plain", "shared"], *rows]).splitlines()


def six_models(device: Device, tolerance: float = 0.05) -> list[str]:
    """The largest K of the paper's six models on a device, beside the K that the paper uses."""
    rows = []
    for model in MODELS.values():
        one = round_time(model, device, 1)
        rows.append(
            [
                _title(model),
                str(model.paper_k),
                *(_largest(model, device, way, tolerance) for way in WAYS),
                f"{1e3 * one.encode:.0f} + {1e3 * one.launches:.0f}",
                f"{1e3 * one.work:.0f}",
            ]
        )
    header = ["model", "K in the paper", *map(str, WAYS), "encode + launches, ms", "GPU work, ms"]
    title = (
        f"{NOTE} Largest K within {tolerance:.0%} of K = 1 in the same way, on {device.title}; the last two columns are of a "
        f"plain eager round with K = 1; {ESTIMATED} operations of a step estimated, at least in part, instead of counted"
    )
    return [title, "", *as_markdown([header, *rows]).splitlines()]


def beside_published() -> list[str]:
    """GR00T N1.6 at K = 1: the model beside what NVIDIA published."""
    model = MODELS["groot"]
    rows = []
    for name, measured in GROOT.items():
        device = DEVICES[name]
        eager, graphs = (round_time(model, device, 1, Way(graphs=graphs)) for graphs in (False, True))
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
        f"{NOTE} Milliseconds of GR00T N1.6 at K = 1, beside measurements by {SOURCE}",
        "",
        *as_markdown([header, *rows]).splitlines(),
    ]


def as_dict(model: Model, device: Device, ks: Sequence[int] = KS, tolerance: float = 0.05) -> dict[str, Any]:
    """The same for programs."""
    return {
        "note": NOTE,
        "model": model.title,
        "device": device.title,
        "tolerance": tolerance,
        "paper_k": model.paper_k,
        "most_k_tried": MOST,
        "ways": {
            str(way): {
                "largest_k": largest_k(model, device, way, tolerance),
                "milliseconds": {str(k): _milliseconds(round_time(model, device, k, way)) for k in ks},
            }
            for way in WAYS
        },
        "assumed": {
            "device": dataclasses.asdict(device),
            "model": dataclasses.asdict(model),
            "share_of_bandwidth": BANDWIDTH,
            "share_of_arithmetic": ARITHMETIC,
        },
    }


def assumed(device: Device) -> str:
    """What the prediction takes for granted about a device."""
    return (
        f"Assumed of {device.title}: {device.bandwidth:g} GB/s and {device.tflops:g} TFLOP/s, of which {BANDWIDTH:.0%} and "
        f"{ARITHMETIC:.0%} are reached; {device.eager_us:g} µs to start an operation, {device.graph_us:g} µs in a graph."
    )


def _milliseconds(time: RoundTime) -> dict[str, float]:
    parts = {"total": time.total, "encode": time.encode, "launches": time.launches, "work": time.work}
    return {name: 1e3 * seconds for name, seconds in parts.items()}


def _largest(model: Model, device: Device, way: Way, tolerance: float) -> str:
    k = largest_k(model, device, way, tolerance)
    return str(k) if k < MOST else f"{MOST} or more"


def _title(model: Model) -> str:
    return model.title if {"ops", "shared_ops"} <= {*model.counted} else f"{model.title} {ESTIMATED}"
