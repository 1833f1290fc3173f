"""The benchmark suite: which modules run, how a run goes on, how two results are compared."""

import ast
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import regression, suite, suite_report
from benchmarks.partial import Partial

ROOT = Path(__file__).parents[2]


def with_main(path):
    """Whether a module has a function ``main`` whose first parameter is ``quick``."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return any(one.name == "main" and [arg.arg for arg in one.args.args][:1] == ["quick"] for one in functions)


def test_every_benchmark_is_in_the_suite():
    found = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if with_main(path)}
    assert found == set(suite.MODULES)


def test_every_committed_result_with_a_ratio_can_be_compared():
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert regression.main([str(path), str(path), "--allow", "0"]) == 0


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """The suite with three modules that take no time; the names of those that ran."""
    ran = []

    def run(module, quick):
        ran.append(module)
        if module == "interrupted":
            raise KeyboardInterrupt
        if module == "broken":
            raise subprocess.CalledProcessError(1, module)
        return 1.0

    monkeypatch.setattr(suite, "run", run)
    monkeypatch.setattr(suite, "Partial", lambda name, quick: Partial(name, quick, version="1", folder=tmp_path))
    return ran


def test_an_interrupted_suite_goes_on_where_it_was(runs):
    with pytest.raises(KeyboardInterrupt):
        suite.run_all(("first", "interrupted", "last"), False, Console(quiet=True))
    assert runs == ["first", "interrupted"]
    runs.clear()
    assert suite.run_all(("first", "second", "last"), False, Console(quiet=True)) == []
    assert runs == ["second", "last"]
    runs.clear()
    suite.run_all(("first",), False, Console(quiet=True))  # that one was complete: the next begins anew
    assert runs == ["first"]


def test_one_that_fails_does_not_stop_the_others_and_is_tried_again(runs):
    assert suite.run_all(("broken", "last"), True, Console(quiet=True)) == ["broken"]
    runs.clear()
    suite.run_all(("broken", "last"), True, Console(quiet=True))
    assert runs == ["broken"]


def test_what_was_measured_is_kept_unless_the_code_has_changed(tmp_path):
    partial = Partial("some", version="1", folder=tmp_path)
    assert partial("a", lambda: {"x": 1}) == {"x": 1}
    with partial.path.open("a") as file:
        file.write('{"key": "b", "fou')  # killed while it wrote
    again = Partial("some", version="1", folder=tmp_path)
    assert again("a", lambda: pytest.fail("it is known")) == {"x": 1}
    assert again("b", lambda: 2) == 2
    assert Partial("some", version="1", folder=tmp_path)("b", lambda: pytest.fail("it is known")) == 2
    assert Partial("some", quick=True, version="1", folder=tmp_path)("a", lambda: "quick") == "quick"
    assert Partial("some", version="2", folder=tmp_path)("a", lambda: "new") == "new"


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
    "content", ["", "[]", '{"rows": [{"case": "a"}]}', '{"rows": [{"case": "b", "ratio": 1}]}', None]
)
def test_files_that_cannot_be_compared(content, tmp_path, capsys):
    old = write(tmp_path / "old.json", [{"case": "a", "ratio": 2.0}])
    new = tmp_path / "new.json"
    if content is not None:
        new.write_text(content)
    assert regression.main([old, str(new)]) == 2
    assert "new.json" in capsys.readouterr().err


def test_the_page_has_every_row_and_says_where_it_was_measured():
    page = suite_report.page(suite_report.results(ROOT / "benchmarks" / "results"))
    assert "| two ways, K = 16, B = 1, compiled |" in page
    assert "time of a round | 1.57× (cost) |" in page
    assert "Xeon" in page
    assert "torch 2.11.0" in page
