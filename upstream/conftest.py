"""Tests against other projects' own code, checked out beside this one: ``KEYSTONE_UPSTREAM=/path make test-upstream``.

Not collected by ``make test``. Each file runs in a process of its own, because several versions of one package cannot be
imported into one. Nothing of what is tested here is part of this repository; see docs/upstream.md.
"""

import datetime
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

# Some virtual machines advertise AMX and forbid it: bf16 matrix products then end the process without a message.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest
import torch
from checkouts import CHECKOUTS, NoCheckout, commit_of, importable

torch.set_num_threads(1)

RESULTS = Path(__file__).with_name("results.json")


@dataclass
class Result:
    """What one run found about one checkout; a row of docs/upstream.md. ``keystone`` is the commit of this repository."""

    commit: str
    keystone: str
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
    """``checkout("openpi", "src")``: the folder of a checkout, with the named folders in it (default: itself) importable.

    Without it the run ends, or the test is skipped if the checkout belongs to another file's tests.
    """

    def find(name: str, *sources: str) -> Path:
        own = CHECKOUTS[name].tests == request.path.stem
        try:
            folder = importable(name, *sources)
        except NoCheckout as missing:
            if not own:
                pytest.skip(str(missing))
            pytest.exit(str(missing), 4)
        if name not in _used:
            _used[name] = Result(
                commit=commit_of(folder),
                keystone=commit_of(Path(__file__).parents[1]),
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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.failed:
        for result in _used.values():
            if report.nodeid.startswith(f"{result.tests}::"):
                result.passed += report.passed
                result.failed += report.failed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, result in _used.items():
        expected = CHECKOUTS[name].commit[:7]
        note = "" if result.commit.startswith(expected) else f" (the adapters were last tested against {expected})"
        found = ", ".join(f"{what} {value:.1e}" for what, value in result.largest_difference.items())
        terminalreporter.write_line(
            f"{name} {result.commit}{note}: {result.passed} passed, {result.failed} failed; {found}"
        )
    if config.getoption("--record") and _used:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        own = {name: asdict(one) for name, one in _used.items() if CHECKOUTS[name].tests == Path(one.tests).stem}
        results.update(own)
        RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n")
