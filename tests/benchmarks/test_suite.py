"""The benchmark suite: which modules run, what is left after an interruption, how two results are compared."""

import ast
import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import closed_loop, cost, denoising, harness, regression, suite, suite_report
from benchmarks.timing import interleave_once
from keystone_robotics.sample.override import SamplerOverride

ROOT = Path(__file__).parents[2]


def with_main(path):
    """Whether a module has a function ``main`` whose first parameter is ``quick``."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return any(one.name == "main" and [arg.arg for arg in one.args.args][:1] == ["quick"] for one in functions)


def test_every_benchmark_is_in_the_suite():
    found = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if with_main(path)}
    assert found == set(suite.MODULES)


def test_every_committed_result_with_a_ratio_can_be_compared():
    folder = ROOT / "benchmarks" / "results"
    names = suite_report.results(folder)
    assert {"select", "denoise_smolvla", "whole_round"} <= set(names)
    assert "closed_loop" not in names  # wall clock, not in turns
    for name in names:
        path = str(folder / f"{name}.json")
        assert regression.main([path, path, "--allow", "0"]) == 0


def test_what_failed_or_was_interrupted_is_left_to_run(monkeypatch):
    def run(module, quick):
        if module == "interrupted":
            raise KeyboardInterrupt
        if module == "broken":
            raise suite.BenchmarkFailed
        return 1.0

    monkeypatch.setattr(suite, "run", run)
    console = Console(quiet=True)
    assert suite.run_all(("broken", "last"), True, console) == ({"last": 1.0}, ["broken"])
    assert suite.run_all(("first", "interrupted", "last"), True, console) == ({"first": 1.0}, ["interrupted", "last"])


def test_the_log_has_the_output_and_the_error(monkeypatch, tmp_path, capsys):
    def main(quick):
        print(f"measured, quick: {quick}")
        if failing:
            raise ValueError("no such case")

    monkeypatch.setattr(suite, "LOGS", tmp_path)
    monkeypatch.setitem(sys.modules, "benchmarks.made_up", SimpleNamespace(main=main))
    failing = False
    assert suite.run("made_up", quick=True) >= 0
    failing = True
    with pytest.raises(suite.BenchmarkFailed):
        suite.run("made_up", quick=True)
    log = (tmp_path / "made_up-quick.log").read_text()
    assert log.startswith("measured, quick: True\n")
    assert log.endswith("ValueError: no such case\n")
    assert capsys.readouterr().out == ""


def test_a_process_that_fails_is_a_benchmark_that_failed(monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "LOGS", tmp_path)
    with pytest.raises(suite.BenchmarkFailed):
        suite.run("no_such_benchmark", quick=False)
    assert "no_such_benchmark" in (tmp_path / "no_such_benchmark.log").read_text()


def write(path, rows):
    path.write_text(json.dumps({"rows": rows}))
    return str(path)


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0, 0.9), st.booleans())
def test_worse_is_worse_in_either_direction(before, after, allow, lower):
    old, new = (
        {"a": {"case": "a", "ratio": value, "better": "lower" if lower else "higher"}} for value in (before, after)
    )
    (change,) = regression.changes(old, new)
    improved = after < before if lower else after > before
    assert (change.factor > 1) == improved or before == after
    assert regression.changes(new, old)[0].factor == pytest.approx(1 / change.factor)


def test_folders_are_compared_file_by_file(tmp_path, capsys):
    machine = {"machine": {}}
    for folder, cases in (("old", {"a": 2.0, "b": 1.0}), ("new", {"a": 1.9})):
        (tmp_path / folder).mkdir()
        rows = [{"case": case, "ratio": ratio} for case, ratio in cases.items()]
        (tmp_path / folder / "one.json").write_text(json.dumps({**machine, "rows": rows}))
        (tmp_path / folder / "study.json").write_text("{}")  # not of a benchmark
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    assert regression.main([old, new]) == 1
    assert f"MISSING in {new}: one: b" in capsys.readouterr().out
    assert regression.main([old, new, "--some"]) == 0


@pytest.mark.parametrize(("rounds", "code"), [([1.2, 1.9], 0), ([1.2, 1.4], 1)])
def test_rounds_that_overlap_are_no_regression(rounds, code, tmp_path):
    old = write(tmp_path / "old.json", [{"case": "a", "ratio": 2.0, "range": [1.8, 2.1]}])
    new = write(tmp_path / "new.json", [{"case": "a", "ratio": 1.3, "range": rounds}])
    assert regression.main([old, new]) == code


def test_memory_is_compared_too(tmp_path, capsys):
    def result(name, authors, fast):
        return write(tmp_path / name, [{"case": "a", "ratio": 2.0, "peak_mib": {"authors": authors, "fast": fast}}])

    old = result("old.json", 700.0, 90.0)
    assert regression.main([old, result("new.json", 700.0, 350.0)]) == 1
    assert "a, peak memory" in capsys.readouterr().out
    small = result("small.json", 30.0, 10.0)
    assert regression.main([small, result("other.json", 30.0, 20.0)]) == 0


@pytest.mark.parametrize(
    ("new", "allow", "code", "said"),
    [
        ([("fast", 2.0), ("cost", 3.0)], 0.1, 0, "2 cases, 0 worse"),
        ([("fast", 1.7), ("cost", 3.0)], 0.1, 1, "WORSE   0.85"),
        ([("fast", 1.7), ("cost", 3.0)], 0.2, 0, "0 worse"),
        ([("fast", 2.0), ("cost", 3.5)], 0.1, 1, "WORSE   0.86"),
        ([("fast", 9.0)], 0.1, 1, "MISSING"),
        ([("fast", 2.0), ("cost", 3.0), ("other", 1.0)], 0.1, 0, "new: other"),
    ],
)
def test_the_exit_code_tells(new, allow, code, said, tmp_path, capsys):
    better = {"cost": "lower"}
    old = write(
        tmp_path / "old.json", [{"case": "fast", "ratio": 2.0}, {"case": "cost", "ratio": 3.0, "better": "lower"}]
    )
    rows = [
        {"case": case, "ratio": ratio, **({"better": better[case]} if case in better else {})} for case, ratio in new
    ]
    assert regression.main([old, write(tmp_path / "new.json", rows), "--allow", str(allow)]) == code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"rows": [{"case": "a"}]}',
        '{"rows": [{"case": "b", "ratio": 1}]}',
        '{"rows": [{"case": "a", "ratio": NaN}]}',
        '{"rows": [{"case": "a", "ratio": 0}]}',
        None,
    ],
)
def test_files_that_cannot_be_compared(content, tmp_path, capsys):
    old = write(tmp_path / "old.json", [{"case": "a", "ratio": 2.0}])
    new = tmp_path / "new.json"
    if content is not None:
        new.write_text(content)
    assert regression.main([old, str(new)]) == 2
    assert "new.json" in capsys.readouterr().err


MACHINE = {
    "command": "python -m benchmarks.some",
    "date": "2001-02-03",
    "cpu": "Some CPU",
    "python": "3.12",
    "torch": "2.0",
}


@pytest.fixture
def folder(tmp_path):
    """Results: a benchmark's, and files that are none."""
    rows = [{"case": "fast", "ratio": 2.25}, {"case": "dear", "ratio": 1.5, "better": "lower"}]
    files = {
        "some": {"machine": MACHINE, "rows": rows},
        "main": {"overview": []},
        "figure1": [1, 2],
        "none": {"rows": []},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_the_page_has_every_row_and_says_where_it_was_measured(folder):
    found = suite_report.results(folder)
    assert list(found) == ["some"]
    page = suite_report.page(found, {})
    assert "| fast | 2.25× |" in page
    assert "| dear | 1.50× (cost) |" in page
    assert "`python -m benchmarks.some`, 2001-02-03, Some CPU, one thread, python 3.12, torch 2.0." in page
    assert "minutes" not in page


def test_the_page_says_how_long_it_took_also_what_ran_earlier(folder):
    suite_report.write(folder, {"cost": 1000.0, "select_speed": 80.0})
    path = suite_report.write(folder, {"cost": 100.2})
    assert path == folder / "suite.md"
    assert "took 3.0 minutes of wall-clock time" in path.read_text()
    assert "cost 100 s, select_speed 80 s." in path.read_text()
    assert list(suite_report.results(folder)) == ["some"]


def failing_write(path, text):
    with path.open("w") as file:
        file.write(text[:10])
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["denoise_some", "closed_loop"])
def test_an_interrupted_write_leaves_the_result_as_it_was(name, tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(closed_loop, "throughput", lambda work, quick, console: [{"per_second": 1.0}])

    def write_result():
        if name == "closed_loop":
            closed_loop.main(quick=True)
        else:
            harness.run(name, lambda quick: [{"case": "a", "ratio": 1.0}], quick=True)

    write_result()
    path = tmp_path / "quick" / f"{name}.json"
    before = path.read_text()
    assert ("rows" in json.loads(before)) == (name != "closed_loop")
    monkeypatch.setattr(Path, "write_text", failing_write)
    with pytest.raises(KeyboardInterrupt):
        write_result()
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]


def test_calls_that_take_long_are_made_once_in_a_round():
    calls = []
    variants = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    outputs, seconds = interleave_once(variants, rounds=3)
    assert calls == ["a", "b"] * 4  # the first to warm up
    assert outputs == {"a": 7, "b": 8}
    assert {name: len(taken) for name, taken in seconds.items()} == {"a": 3, "b": 3}


class Expert(torch.nn.Module):
    """What the benchmark of the cost needs of SmolVLA."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(chunk_size=2, max_action_dim=3)
        self.vlm_with_expert = SimpleNamespace(num_vlm_layers=1, num_key_value_heads=1)

    def denoise_step(self, real, cache, noise, times):
        return noise * times[:, None, None]


def test_the_cost_leaves_the_round_that_it_entered(monkeypatch):
    state = []

    @contextlib.contextmanager
    def sharing():
        state.append("entered")
        yield
        state.append("left")

    monkeypatch.setattr("keystone_robotics.sample.kit.rounds.sharing", sharing)
    model = Expert()
    found = cost.measure(model, SamplerOverride, cost.Case(2, 16, 1), rounds=1)
    assert set(found) == {"authors", "shared"}
    assert state == ["entered", "left"]
    assert type(model) is Expert


def test_the_peak_of_a_call_is_a_number_of_mib():
    found = denoising.peak_mib(lambda: torch.zeros(2**22).sum())
    assert found is None or found >= 0
