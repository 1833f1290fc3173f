"""What is shown while an evaluation runs."""

import io
import re

import pytest
from rich.console import Console

from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.progress import ProgressDisplay
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.spec import Spec


def episodes(arm, *successes):
    return [EpisodeRecord("a", number, success, arm=arm) for number, success in enumerate(successes)]


@pytest.mark.parametrize("terminal", [True, False])
def test_stored_and_new_episodes_are_counted_per_arm(terminal, monkeypatch):
    monkeypatch.setattr("keystone_robotics.evaluate.progress.INTERVAL", -1.0)
    arms = tuple(map(Spec.parse, ("first", "keystone:k=16")))
    settings = EvaluationConfig("p", "e", ("a",), 4, shard=2, arms=arms)
    console = Console(force_terminal=terminal, file=io.StringIO(), width=100)
    stored = episodes("first", True, False, True) + episodes("medoid:k=3", True)
    with ProgressDisplay(console, settings, stored) as progress:
        progress.add(episodes("first", False))
        progress.add(episodes("keystone:k=16", True, True))
        assert (progress.done, progress.before) == (6, 3)
        line = progress.line()
    assert re.fullmatch(r"6/8 episodes, about \d+ min left: first 50\.0 %; keystone:k=16 100\.0 %", line), line
    printed = console.file.getvalue()
    assert "keystone:k=16" in printed
    assert ("6/8 episodes" in printed) == (not terminal)


def test_of_many_arms_the_line_shows_the_best():
    names = [f"keystone:k={k}" for k in range(2, 102)]
    settings = EvaluationConfig("p", "e", ("a",), 4, arms=tuple(map(Spec.parse, names)))
    stored = [one for name in names[-3:] for one in episodes(name, True, name != names[-3])]
    line = ProgressDisplay(Console(file=io.StringIO()), settings, stored + episodes(names[0], False)).line()
    rates = line.partition(": ")[2].split("; ")
    assert rates[:4] == [f"{names[-2]} 100.0 %", f"{names[-1]} 100.0 %", f"{names[-3]} 50.0 %", f"{names[0]} 0.0 %"]
    assert rates[4:] == [f"{names[1]} –", f"{names[2]} –", "… and 94 more"]
