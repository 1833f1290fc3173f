"""`keystone compare` as a user types it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from runs import write_run

from keystone_robotics.cli import main

KEYSTONE = Path(sys.executable).with_name("keystone")
VLA_EVAL = Path(__file__).parent / "data" / "vla_eval.json"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    plain = np.zeros((2, 20, 2), int)
    plain[:, :8] = 1
    better = plain.copy()
    better[:, 8:17] = 1
    return write_run(
        tmp_path_factory.mktemp("run"),
        {"first": plain, "keystone:k=16": better, "medoid:k=4": plain},
        errors=[("keystone:k=16", 1, 19, 0)],
    )


def test_what_it_prints_and_writes(run, tmp_path, capsys):
    arms = ["--arms", "first", "keystone:k=16"]
    assert main(["compare", str(run), *arms, "--json", str(tmp_path / "new" / "out.json")]) == 0
    printed = capsys.readouterr().out
    for part in (
        "paired: the hashes of 40 initial states agree",
        "task 0  40 (20)",
        "only B/A",
        "sign flips of initial states, exact",
        "mean ± std across repeats: A 40.0 ± 0.0, B 85.0 ± 0.0",
        "stop allowed, B is better since state",
        "one round: 5.0 ms → 6.0 ms (×1.20)",
        "errors, counted as failures: A 0, B 1",
        "B is better: +45.0 points",
    ):
        assert part in printed
    (written,) = json.loads((tmp_path / "new" / "out.json").read_text())["comparisons"]
    assert written["improvement"] is True
    assert written["advice"] == "stop allowed"
    assert written["overall"]["difference"] == pytest.approx(0.45)
    assert [task["task"] for task in written["tasks"]] == ["task 0", "task 1"]
    assert written["pairing"]["by"] == "hash"


def test_a_regression_ends_with_one_if_asked(run, capsys):
    with pytest.raises(SystemExit) as end:
        main(["compare", str(run), "--arms", "keystone:k=16", "first", "--fail-on-regression"])
    assert end.value.code == 1
    assert "B is worse: -45.0 points" in capsys.readouterr().out


def test_no_regression_ends_with_zero(run, capsys):
    assert main(["compare", str(run), "--fail-on-regression"]) == 0
    assert "for one of 2 arms (Holm)" in capsys.readouterr().out


@pytest.mark.parametrize("broken", ["first", "keystone:k=16"])
def test_a_gate_does_not_pass_if_nothing_was_measured(tmp_path, capsys, broken):
    """Whichever arm it is: with a broken baseline everything would look like an improvement, or like no difference."""
    solved = np.ones((1, 4, 1), int)
    outcomes = {arm: solved * (arm != broken) for arm in ("first", "keystone:k=16")}
    run = write_run(tmp_path / "run", outcomes, errors=[(broken, 0, episode, 0) for episode in range(4)])
    name = "A" if broken == "first" else "B"
    assert main(["compare", str(run)]) == 0
    assert f"all 4 episodes of {name} ended with an error: nothing was measured" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["compare", str(run), "--fail-on-regression"])
    assert end.value.code == 1


def test_some_errors_are_no_regression(tmp_path, capsys):
    solved = np.ones((1, 20, 1), int)
    run = write_run(tmp_path / "run", {"first": solved, "keystone:k=16": solved}, errors=[("first", 0, 3, 0)])
    assert main(["compare", str(run), "--fail-on-regression"]) == 0
    shown = capsys.readouterr().out
    assert "errors, counted as failures: A 1, B 0" in shown
    assert "nothing was measured" not in shown


def test_two_runs_and_their_hashes(run, tmp_path, capsys):
    other = write_run(tmp_path / "other", {"first": np.ones((2, 20, 2), int)}, hashes="different", max_steps=300)
    assert main(["compare", str(run), str(other), "--arms", "first"]) == 0
    shown = capsys.readouterr().out
    assert "unpaired: the initial states differ in 40 of 40 episodes (task 0 episode 0, " in shown
    assert "and 37 more" in shown
    assert "max_steps is not the same: None in A, 300 in B" in shown
    assert "unpaired, Newcombe" in shown
    assert "permutation of initial states, exact" in shown
    assert main(["compare", str(run), str(other), "--arms", "first", "--paired", "require"]) == 2
    assert "pairing is required" in capsys.readouterr().err


def test_results_of_another_program(capsys):
    assert main(["compare", str(VLA_EVAL), str(VLA_EVAL)]) == 0
    shown = capsys.readouterr().out
    assert "paired by seed, not audited" in shown
    assert "one episode: 10.5 s → 10.5 s" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", "first", "keystone:k=15"], "did you mean 'keystone:k=16'"),
        (["--tasks", "task 7"], "no task 'task 7'"),
        (["nowhere"], "nowhere does not exist"),
        (["--json", "/dev/null/out.json"], "cannot write /dev/null/out.json"),
    ],
)
def test_what_cannot_be_compared_ends_with_two(run, capsys, arguments, message):
    assert main(["compare", str(run), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
