"""Settings for all tests: one thread, offline, and CPU features that work inside virtual machines."""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Some virtual machines advertise AMX and forbid it: bf16 matrix products then end the process without a message.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("keystone", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("keystone")

#: Doctests are in src; two files of this name would be taken for one module.
collect_ignore_glob = ["*/conftest.py"]

#: What takes longest begins first, so that no worker is left with it at the end. Those that wait, for processes and for
#: sockets, stand beside those that compute: there are more workers than cores.
LONGEST = (
    "ray", "commands", "lerobot-commands", "demo", "tests/tune/test_tune.py", "kill", "processes",
    "study/tests/reproduce/test_reproduce_command.py", "smolvla", "fastwam", "tests/openpi_policy/test_openpi_adapters.py",
    "tests/harness/test_vla_eval_end_to_end.py", "fast_lerobot", "tests/upstream_like/test_upstream_like.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in a hook of the same name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file run in one worker, where they share its fixtures, unless a mark puts them into another group."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    ranks = {group: rank for rank, group in enumerate(LONGEST)}

    def rank(item: pytest.Item) -> int:
        mark = item.get_closest_marker("xdist_group")
        group = mark.args[0] if mark else item.nodeid.partition("::")[0]
        if mark is None:
            item.add_marker(pytest.mark.xdist_group(group))
        return ranks.get(group, len(ranks))

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """What was imported stays: 900,000 objects, through which each `gc.collect()` of a test would go, in 0.5 s."""
    gc.collect()
    gc.freeze()
