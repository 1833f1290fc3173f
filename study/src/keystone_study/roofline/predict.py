"""The time of a round from what it reads, computes and launches."""

from __future__ import annotations

from typing import NamedTuple

from keystone_study.roofline.devices import Device
from keystone_study.roofline.models import Model

#: Share of the data sheet's arithmetic and bandwidth that kernels of these sizes reach. Assumed.
COMPUTE_EFFICIENCY, BANDWIDTH_EFFICIENCY = 0.5, 0.8
#: Upper end of the search for K.
MAX_K = 256


class ExecutionMode(NamedTuple):
    """How denoising runs: captured as a CUDA graph (or compiled) instead of eagerly; with the context shared instead of
    repeated for every candidate.
    """

    graphs: bool = False
    shared: bool = False

    def __str__(self) -> str:
        return f"{'graphs' if self.graphs else 'eager'}, {'shared' if self.shared else 'plain'}"


class RoundTime(NamedTuple):
    """Predicted seconds of one round.

    Attributes:
        encode: of the context.
        launches: host time to start the operations of all denoising steps.
        work: device time of all denoising steps.
    """

    encode: float
    launches: float
    work: float

    @property
    def denoise(self) -> float:
        """Host and device run in parallel: the slower one decides."""
        return max(self.launches, self.work)

    @property
    def total(self) -> float:
        return self.encode + self.denoise


def step_work(model: Model, device: Device, k: int, shared: bool) -> dict[str, float]:
    """Device seconds of one denoising step for K candidates, by part."""
    bandwidth, arithmetic = _rates(device)
    shared = shared and model.shares_context
    tokens = k * model.suffix
    parameters = 1e6 * model.weights
    cache = 2 * model.prefix * model.cache_width * model.layers  # bytes of one set of keys and values
    # Each copy and each repetition writes and reads; attention itself reads once.
    touched = 1 + 2 * model.copies + 2 * (model.repeats if model.repeats > 1 else 0)
    scores = tokens * model.prefix * model.query_width / model.head * model.layers
    return {
        "weights": max(2 * parameters / bandwidth, 2 * parameters * tokens / arithmetic),
        "attention": 4 * tokens * (model.prefix + model.suffix) * model.query_width * model.layers / arithmetic,
        **(_hoistable(model, device, k) | (dict.fromkeys(_hoisted(model), 0.0) if shared else {})),
        "cache": cache / bandwidth if shared else k * cache * touched / bandwidth,
        # float32, written and read, by the scores and once more by the softmax
        "scores": scores * 16 / bandwidth if model.materialised and not shared else 0.0,
    }


def round_time(model: Model, device: Device, k: int, mode: ExecutionMode = ExecutionMode()) -> RoundTime:  # noqa: B008 (a tuple, not a list)
    """The predicted time of a round of K candidates.

    >>> from keystone_study.roofline import DEVICES, MODELS
    >>> one, sixteen = (round_time(MODELS["pi05"], DEVICES["a6000"], k).total for k in (1, 16))
    >>> 1.0 < sixteen / one < 1.2                           # launch-bound: sixteen cost little more than one
    True
    """
    bandwidth, arithmetic = _rates(device)
    per_operation = 1e-6 * (device.graph_us if mode.graphs else device.eager_us)
    encode = max(
        model.encoder_ops * per_operation,
        2e6 * model.encoder / bandwidth,
        2e6 * model.encoder * model.encoder_tokens / arithmetic,
    )
    ops = model.shared_ops if mode.shared else model.ops
    work = model.steps * sum(step_work(model, device, k, mode.shared).values())
    if mode.shared and model.shares_context:
        once = _hoistable(model, device, 1)
        work += sum(once[name] for name in _hoisted(model))  # before the loop
    return RoundTime(encode, model.steps * ops * per_operation, work)


def largest_k(model: Model, device: Device, mode: ExecutionMode = ExecutionMode(), tolerance: float = 0.05) -> int:  # noqa: B008
    """The largest K whose round takes at most ``1 + tolerance`` times as long as K = 1 in the same mode.

    >>> from keystone_study.roofline import DEVICES, MODELS
    >>> largest_k(MODELS["groot"], DEVICES["a6000"]), largest_k(MODELS["groot"], DEVICES["a6000"], ExecutionMode(shared=True))
    (11, 20)
    """
    limit = (1 + tolerance) * round_time(model, device, 1, mode).total
    k = 1
    while k < MAX_K and round_time(model, device, k + 1, mode).total <= limit:
        k += 1
    return k


def _hoistable(model: Model, device: Device, k: int) -> dict[str, float]:
    """Device seconds for what depends on the time step alone, and for the context's projections for K candidates."""
    bandwidth, arithmetic = _rates(device)
    projections = 1e6 * model.context_weights
    tokens = k * (model.prefix if model.projected is None else model.projected)
    return {
        "time": 2e6 * model.time_weights / bandwidth,
        "context": max(2 * projections / bandwidth, 2 * projections * tokens / arithmetic),
    }


def _hoisted(model: Model) -> tuple[str, ...]:
    """Which of them a fast path computes once a round."""
    return ("time", "context") if model.time_once else ("context",)


def _rates(device: Device) -> tuple[float, float]:
    """Bytes and operations per second that kernels reach."""
    return BANDWIDTH_EFFICIENCY * 1e9 * device.bandwidth, COMPUTE_EFFICIENCY * 1e12 * device.tflops
