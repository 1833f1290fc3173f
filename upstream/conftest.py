"""Tests against other projects' own code, checked out beside this one: ``KEYSTONE_UPSTREAM=/path make test-upstream``.

Not collected by ``make test``. Each file runs in a process of its own, because several versions of one package cannot be
imported into one. Nothing of what is tested here is part of this repository; see docs/upstream.md.
"""

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

# Some virtual machines advertise AMX and forbid it: bf16 matrix products then end the process without a message.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest
import torch

torch.set_num_threads(1)

#: What `checkout` expects: folder in $KEYSTONE_UPSTREAM -> (repository, the commit that the adapters were last tested against).
CHECKOUTS = {
    "Isaac-GR00T-N1.5": ("https://github.com/NVIDIA/Isaac-GR00T", "4af2b62"),
    "Isaac-GR00T-N1.6": ("https://github.com/NVIDIA/Isaac-GR00T", "e29d8fc"),
    "Isaac-GR00T-N1.7": ("https://github.com/NVIDIA/Isaac-GR00T", "b995540"),
    "starVLA": ("https://github.com/starVLA/starVLA", "0ed0aad"),
    "starVLA-eaa51c4": ("https://github.com/starVLA/starVLA", "eaa51c4"),
    "X-VLA": ("https://github.com/2toinf/X-VLA", "7a6c08a"),
    "X-VLA-d622be6": ("https://github.com/2toinf/X-VLA", "d622be6"),
    "openpi": ("https://github.com/Physical-Intelligence/openpi", "15a9616"),
    "FastWAM": ("https://github.com/yuantianyuan01/FastWAM", "45d8e14"),
}
RESULTS = Path(__file__).with_name("results.json")


@dataclass
class Result:
    """What one run found about one checkout; a row of docs/upstream.md."""

    commit: str
    date: str
    tests: str
    versions: str
    passed: int = 0
    failed: int = 0
    largest_difference: dict[str, float] = field(default_factory=dict)


_used: dict[str, Result] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help=f"write the results into {RESULTS.name}")


@pytest.fixture(scope="module")
def checkout(request: pytest.FixtureRequest) -> Callable[..., Path]:
    """``checkout("openpi", "src")``: the folder of a checkout, with the named folders in it (default: itself) importable."""

    def find(name: str, *sources: str) -> Path:
        repository, commit = CHECKOUTS[name]
        how = f"git clone {repository} $KEYSTONE_UPSTREAM/{name} && git -C $KEYSTONE_UPSTREAM/{name} checkout {commit}"
        root = os.environ.get("KEYSTONE_UPSTREAM")
        if not root:
            pytest.exit(f"KEYSTONE_UPSTREAM is not set: the folder that holds the checkouts, among them\n  {how}", 4)
        folder = Path(root).expanduser().resolve() / name
        if not folder.is_dir():
            pytest.fail(
                f"no checkout of {repository} (commit {commit}) at {folder}. To make one:\n  {how}", pytrace=False
            )
        for source in sources or (".",):
            path = str(folder / source)
            if path not in sys.path:
                sys.path.insert(0, path)
        if name not in _used:
            _used[name] = Result(
                commit=_commit(folder),
                date=datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
                tests=f"upstream/{request.path.name}",
                versions=f"Python {platform.python_version()}, torch {torch.__version__}",
            )
        return folder

    return find


@pytest.fixture
def record() -> Callable[[str, str, float], None]:
    """``record("openpi", "candidates", 3e-7)``: a measured difference, of which the largest goes into the results."""

    def note(name: str, what: str, difference: float) -> None:
        differences = _used[name].largest_difference
        differences[what] = max(differences.get(what, 0.0), difference)

    return note


def _commit(folder: Path) -> str:
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.failed:
        for result in _used.values():
            if report.nodeid.startswith(f"{result.tests}::"):
                result.passed += report.passed
                result.failed += report.failed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, result in _used.items():
        expected = CHECKOUTS[name][1]
        note = "" if result.commit.startswith(expected) else f" (the adapters were last tested against {expected})"
        found = ", ".join(f"{what} {value:.1e}" for what, value in result.largest_difference.items())
        terminalreporter.write_line(
            f"{name} {result.commit}{note}: {result.passed} passed, {result.failed} failed; {found}"
        )
    if config.getoption("--record") and _used:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results.update({name: asdict(result) for name, result in _used.items()})
        RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n")
