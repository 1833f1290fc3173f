"""The largest amount of memory in use during a round."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

MIB = 2**20


class Peak(NamedTuple):
    """In MiB: the largest amount in use during a round, and what was in use before it."""

    peak: float
    before: float


class Meter(Protocol):
    """Measures the peak between `begin` and `end`; None where the system does not tell."""

    title: str

    def begin(self) -> None: ...

    def end(self) -> Peak | None: ...


class CudaMeter:
    """What PyTorch's allocator handed out on a GPU, weights included."""

    title = "CUDA allocator"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def begin(self) -> None:
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)

    def end(self) -> Peak:
        torch.cuda.synchronize(self._device)
        return Peak(torch.cuda.max_memory_allocated(self._device) / MIB, self._before / MIB)


class ProcessMeter:
    """Resident memory of this process. Linux can reset the peak; elsewhere it is the peak since the process started, which
    grows with K as long as K is tried in ascending order.
    """

    title = "resident memory of the process"

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        self._process = process
        self._before: float | None = None

    def begin(self) -> None:
        gc.collect()
        if sys.platform == "linux":
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)  # or what the last round freed would count as in use
        try:
            (self._process / "clear_refs").write_text("5")  # resets the peak
            self._before = self._read("VmRSS")
        except OSError:
            self._before = _peak_since_start()

    def end(self) -> Peak | None:
        try:
            peak = self._read("VmHWM")
        except OSError:
            peak = _peak_since_start()
        return None if peak is None or self._before is None else Peak(peak, min(self._before, peak))

    def _read(self, name: str) -> float | None:
        for line in (self._process / "status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024  # in kB
        return None


def _peak_since_start() -> float | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (MIB if sys.platform == "darwin" else 1024)


def meter_for(device: torch.device) -> Meter:
    """The meter for a device."""
    return CudaMeter(device) if device.type == "cuda" else ProcessMeter()
