"""Settings for all tests: one thread, offline, and CPU features that work inside virtual machines."""

import functools
import gc
import importlib.metadata
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Some virtual machines advertise AMX and forbid it: bf16 matrix products then end the process without a message.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import hypothesis
import pytest
import torch

# Asked by transformers and by diffusers when they are imported: 0.35 s each time, in every worker.
importlib.metadata.packages_distributions = functools.cache(importlib.metadata.packages_distributions)
torch.set_num_threads(1)
hypothesis.settings.register_profile("keystone", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("keystone")

#: Doctests are in src; two files of this name would be taken for one module.
collect_ignore_glob = ["*/conftest.py"]

#: What takes longest begins first, so that no worker is left with it at the end. Files that wait, for processes and for
#: sockets, stand beside files that compute: there are more workers than cores.
LONGEST = (
    "tests/evaluate/test_ray.py", "tests/lerobot/test_eval_command.py", "tests/sample/test_adapters.py",
    "study/tests/cli/test_demo.py", "tests/cli/test_eval.py", "tests/upstream_like/test_upstream_like.py",
    "tests/evaluate/test_supervision.py", "tests/openpi_policy/test_openpi_adapters.py", "tests/tune/test_tune.py",
    "tests/evaluate/test_kill_and_resume.py", "tests/sample/test_fast_lerobot.py", "tests/evaluate/test_executors.py",
    "tests/sample/test_compiled_step.py", "tests/profiling/test_profile_command.py", "tests/sample/test_shared_denoisers.py",
    "study/tests/reproduce/test_reproduce_command.py", "tests/sample/test_rounds.py", "tests/serve/test_serve_process.py",
    "tests/sample/test_fast_fastwam.py", "tests/harness/test_vla_eval_end_to_end.py", "tests/packaging/test_wheels.py",
    "study/tests/train/test_ogbench_expert.py", "study/tests/train/test_training.py", "tests/sample/test_bypass.py",
    "study/tests/reproduce/test_reproduce_forecast.py", "tests/serve/test_serve_ray.py",
    "tests/evaluate/test_rollout.py", "tests/cli/test_recipes_collect.py", "tests/sample/test_drift.py",
    "study/tests/train/test_pusht_expert.py", "tests/policies/test_lerobot_agent.py", "tests/environments/test_ogbench.py",
    "tests/openpi_policy/test_openpi_serving.py", "tests/openpi_policy/test_openpi_fast.py", "tests/lerobot/test_flag.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {file: rank for rank, file in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


def pytest_collectstart() -> None:
    """Until everything is imported: looking again and again through what stays took 2 of 16 s."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays: 900,000 objects, through which each `gc.collect()` of a test would go, in 0.5 s."""
    gc.collect()
    gc.freeze()
    gc.enable()
