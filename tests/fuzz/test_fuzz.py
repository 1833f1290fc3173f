"""A short attack with the targets of `make fuzz`. A case that hangs ends the process, which pytest-xdist counts as failed."""

import runpy
import sys

import numpy as np
import pytest

from fuzz import TARGETS, Failed, run


def test_a_short_attack(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["fuzz", "--seconds", "60", "--count", "5", "--seed", "100000"])
    runpy.run_module("fuzz", run_name="__main__")
    assert [line.split("  ")[0].strip() for line in capfd.readouterr().out.splitlines()] == list(TARGETS)


def test_a_case_that_gives_way_says_how_to_repeat_it():
    def gives_way(generator):
        assert generator.random() < 0.9
        return 1

    with pytest.raises(Failed, match=r"python -m fuzz --only 'mine' --seed \d+ --count 1: AssertionError") as raised:
        run({"mine": gives_way}, 10, 100, 0)
    seed = int(str(raised.value).partition("--seed ")[2].split()[0])
    assert run({"mine": gives_way}, 10, seed, 0) == {"mine": (seed, seed)}
    with pytest.raises(Failed):
        run({"mine": gives_way}, 10, 1, seed)


def test_cases_are_bounded_in_time_and_count():
    assert run({"mine": lambda generator: 2}, 10, 3, 0) == {"mine": (3, 6)}
    assert run({"mine": lambda generator: 2}, -1, 3, 0) == {"mine": (0, 0)}
    numbers = []
    run({"mine": lambda generator: numbers.append(generator.random()) or 1}, 10, 2, 5)
    assert numbers == [np.random.default_rng([case, *b"mine"]).random() for case in (5, 6)]
