"""Settings for all tests: one thread, offline, and CPU features that work inside virtual machines."""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Some virtual machines advertise AMX and forbid it: bf16 matrix products then end the process without a message.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("keystone", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("keystone")

#: Doctests are in src; two files of this name would be taken for one module.
collect_ignore_glob = ["*/conftest.py"]


def pytest_collection_finish() -> None:
    """What was imported stays: 900,000 objects, through which each `gc.collect()` of a test would go, in 0.5 s."""
    gc.collect()
    gc.freeze()
