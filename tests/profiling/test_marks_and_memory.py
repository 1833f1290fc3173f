"""Times of a GPU are its own, and nothing waits for it in between; meters measure the peak of memory."""

import ctypes
import time
from types import SimpleNamespace

import pytest
import torch

from keystone_robotics.profiling.memory import CudaMeter, ProcessMeter, meter_for
from keystone_robotics.sample.timer import Mark, RoundTimer, wait_for

CUDA = torch.device("cuda", 0)


class FakeGPU:
    """A GPU of which every event happens a millisecond after the last, whatever the host's clock says."""

    def __init__(self, monkeypatch):
        self.calls = []
        self.time = 0
        self.capturing = False
        gpu = self

        class Event:
            device = CUDA

            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                gpu.time += 1
                self.at = gpu.time

            def synchronize(self):
                gpu.calls.append("wait for event")

            def elapsed_time(self, other):
                return float(other.at - self.at)

        def current_stream(device):
            assert device == CUDA
            return SimpleNamespace(synchronize=lambda: gpu.calls.append("wait for stream"))

        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpu.capturing)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
        monkeypatch.setattr(time, "perf_counter", lambda: 100.0 + 1e-6 * gpu.time)


def test_times_are_on_the_gpus_time_line_and_only_the_end_is_waited_for(monkeypatch):
    gpu = FakeGPU(monkeypatch)
    timer = RoundTimer()
    with timer.round():
        timer.encode(
            "see", lambda: timer.encode("inner", lambda: None, (), {}), (), {}
        )  # 1 to 2 ms: inner ones are in it
        timer.begin()  # 3
        timer.step()  # 4
        timer.step()
        assert gpu.calls == []
        sampled = wait_for(CUDA)  # 5
        assert gpu.calls == ["wait for stream"]
        times = timer.end(CUDA, sampled, 0.25)
    assert times[:4] == pytest.approx((0.002, 0.001, 0.25, 0.001))


def test_moments_that_were_not_marked_on_the_device_are_the_hosts(monkeypatch):
    gpu = FakeGPU(monkeypatch)
    first, second = Mark.now(), Mark.now()
    assert first.until(second, CUDA) == pytest.approx(1e-3)
    for device in (torch.device("cuda", 1), torch.device("cpu")):
        assert first.until(second, device) == pytest.approx(1e-6)
    gpu.capturing = True  # a timing event would become a part of the user's CUDA graph
    assert Mark.now().event is None
    assert first.until(Mark.now(), CUDA) == pytest.approx(1e-6)


def test_candidates_on_other_devices_are_waited_for(monkeypatch):
    waits = []
    monkeypatch.setattr(torch, "npu", SimpleNamespace(synchronize=lambda: waits.append(1)), raising=False)
    wait_for(SimpleNamespace(type="npu"))
    assert len(waits) == 1


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
        assert mib * 0.9 <= peak.peak - peak.before <= mib * 1.5 + 8
    assert found[24].peak < found[96].peak - 32


def test_without_proc_the_peak_since_the_start_is_told(tmp_path):
    meter = ProcessMeter(tmp_path / "nothing")
    meter.begin()
    peak = meter.end()
    assert peak.peak >= peak.before > 10


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
