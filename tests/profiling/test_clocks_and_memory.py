"""Clocks wait where they must and nowhere else; meters tell what was in use at most."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from keystone_robotics.profiling.clocks import CudaClock, HostClock, clock_for
from keystone_robotics.profiling.memory import CudaMeter, ProcessMeter, meter_for

CUDA = torch.device("cuda", 0)


class FakeGPU:
    """Keeps a diary of what it is asked; every event is a millisecond after the last."""

    def __init__(self, monkeypatch):
        self.diary = []
        self.time = 0
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self, stream):
                assert stream == "stream"
                gpu.time += 1
                self.at = gpu.time
                gpu.diary.append("record")

            def elapsed_time(self, other):
                gpu.diary.append("read")
                return float(other.at - self.at)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: self.diary.append("wait"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: "stream")


def test_a_gpu_is_waited_for_before_the_first_event_and_before_any_is_read(monkeypatch):
    gpu = FakeGPU(monkeypatch)
    clock = clock_for(CUDA)
    assert isinstance(clock, CudaClock)
    clock.switch("nothing runs yet")
    clock.start("encode")
    for phase in ("denoise", "encode", "denoise", "select"):
        clock.switch(phase)
    spent = clock.stop()
    assert spent == {"encode": 2.0, "denoise": 2.0, "select": 1.0}
    # In between nothing waits, or launches could not run ahead of the work.
    assert gpu.diary == ["wait", "record", *["record"] * 4, "wait", "record", "wait", *["read"] * 5]
    clock.switch("after the end")
    assert gpu.diary[-1] == "read"


def test_other_devices_are_waited_for_at_every_switch(monkeypatch):
    waits = []
    monkeypatch.setattr(torch, "npu", SimpleNamespace(synchronize=lambda: waits.append(1)), raising=False)
    clock = HostClock(SimpleNamespace(type="npu"))
    clock.start("encode")
    clock.switch("denoise")
    assert set(clock.stop()) == {"encode", "denoise"}
    assert len(waits) == 3


def test_the_host_clock_sums_up_what_passes(monkeypatch):
    times = iter([1.0, 1.5, 3.0, 3.25])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    clock = clock_for(torch.device("cpu"))
    clock.start("encode")
    clock.switch("denoise")
    clock.switch("encode")
    assert clock.stop() == {"encode": 750.0, "denoise": 1500.0}


def test_resident_memory_forgets_the_peak_of_the_round_before():
    meter = meter_for(torch.device("cpu"))
    assert isinstance(meter, ProcessMeter)
    found = {}
    for mib in (96, 24):
        meter.begin()
        block = ctypes.create_string_buffer(mib * 2**20)
        ctypes.memset(block, 1, len(block))
        found[mib] = meter.end()
        del block
    for mib, peak in found.items():
        assert mib * 0.9 <= peak.peak - peak.rest <= mib * 1.5 + 8
    assert found[24].peak < found[96].peak - 32


def test_without_proc_the_peak_since_the_start_is_told(tmp_path):
    meter = ProcessMeter(tmp_path / "nothing")
    meter.begin()
    peak = meter.end()
    assert peak.peak >= peak.rest > 10


def test_cuda_memory_is_the_allocators(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("wait"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3 * 2**20)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7 * 2**20)
    meter = meter_for(CUDA)
    assert isinstance(meter, CudaMeter)
    meter.begin()
    assert tuple(meter.end()) == pytest.approx((7.0, 3.0))
    assert calls == ["wait", "reset", "wait"]
