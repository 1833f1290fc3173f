"""The table at the end, and the line on the way."""

import io
import re

import pytest
from rich.console import Console

from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.progress import Watch
from keystone_robotics.evaluate.results import EpisodeResult, ShardResult
from keystone_robotics.evaluate.store import EpisodeRow
from keystone_robotics.evaluate.summary import as_markdown, as_table, lines, summarise
from keystone_robotics.spec import Spec

ARMS = ["first", "keystone:k=16"]


def rows(arm, outcomes, task="a", repeat=0, error=None, **given):
    values = {"steps": 9, "rounds": 3, "consensus": None, "latency_ms": 2.0, "noise_seed": 0, **given}
    return [
        EpisodeRow(
            arm=arm, task=task, repeat=repeat, episode=number, success=bool(success), initial_state=f"{task}{number}",
            initial_seed=number, error=error, **values,
        )
        for number, success in enumerate(outcomes)
    ]  # fmt: skip


def test_rates_differences_and_repeats():
    first = rows("first", [0, 0, 1, 1]) + rows("first", [0, 1, 1, 1], repeat=1)
    other = rows("keystone:k=16", [1, 1, 1, 1], consensus=0.5) + rows("keystone:k=16", [0, 1, 1, 1], repeat=1)
    one, two = summarise(first + other, ARMS)
    assert (one.rate, two.rate) == (5 / 8, 7 / 8)
    assert one.repeats_std == pytest.approx(0.125 * 2**0.5)
    assert (one.difference, one.difference_interval, one.pairing) == (None, None, "")
    assert two.difference == pytest.approx(0.25)
    assert two.difference_interval[0] <= 0.25 <= two.difference_interval[1]
    assert (two.consensus, two.latency_ms) == (0.5, 2.0)
    assert two.pairing == "paired: the hashes of 4 initial states agree"


def test_pairs_are_found_by_the_hash_of_their_initial_state():
    strangers = rows("keystone:k=16", [1, 1, 1, 1])
    strangers = [EpisodeRow(**{**vars(row), "initial_state": f"other{row.episode}"}) for row in strangers]
    _, two = summarise(rows("first", [0, 0, 0, 0]) + strangers, ARMS)
    assert two.difference == 1.0
    assert two.pairing.startswith("unpaired: the initial states differ in 4 of 4 episodes")
    assert as_table(summarise(rows("first", [0, 0, 0, 0]) + strangers, ARMS)).caption.startswith(
        "keystone:k=16 is unpaired"
    )


def test_an_arm_that_crashes_does_not_profit_from_it():
    """The hash of the initial state is unknown where a worker died."""
    crashed = [
        EpisodeRow(**{**vars(row), "initial_state": ""})
        for row in rows("keystone:k=16", [0, 0], error="its worker died")
    ]
    _, two = summarise(rows("first", [1, 1]) + crashed, ARMS)
    assert two.difference == -1.0
    assert two.pairing.startswith("paired")


def test_errors_count_as_failures():
    one = summarise(rows("first", [1, 1]) + rows("first", [0], task="b", error="it broke"), ["first"])[0]
    assert (one.episodes, one.errors, one.rate, one.by_task) == (3, 1, 1 / 2, {"a": 1.0, "b": 0.0})  # mean over tasks


def test_tasks_that_only_one_arm_has_do_not_disturb():
    _, two = summarise(
        rows("first", [0, 0]) + rows("keystone:k=16", [1, 1]) + rows("keystone:k=16", [0], task="b"), ARMS
    )
    assert two.difference == 1.0
    assert two.by_task == {"a": 1.0, "b": 0.0}


def test_an_arm_without_episodes_is_left_out():
    assert [one.arm for one in summarise(rows("keystone:k=16", [1]), ARMS)] == ["keystone:k=16"]


def test_empty_columns_are_left_out():
    plain = lines(summarise(rows("first", [0, 1]), ["first"]))
    assert plain[0] == ["arm", "n", "success, %", "one round"]
    everything = (
        rows("first", [0, 1]) + rows("first", [0, 1], repeat=1) + rows("keystone:k=16", [0, 1], error="it broke")
    )
    heading = lines(summarise(everything, ARMS))[0]
    assert heading == ["arm", "n", "success, %", "± repeats", "Δ to the first", "one round", "errors"]
    unmeasured = lines(summarise(rows("first", [0, 1], latency_ms=None), ["first"]))
    assert unmeasured[0] == ["arm", "n", "success, %"]


def test_two_arms_fit_a_terminal_of_80_columns():
    outcomes = [number % 2 for number in range(1000)]
    everything = [
        row
        for arm in ARMS
        for repeat in range(2)
        for row in rows(arm, outcomes[repeat:], repeat=repeat, latency_ms=123.4)
    ]
    console = Console(width=80, file=io.StringIO())
    console.print(as_table(summarise(everything, ARMS)))
    printed = console.file.getvalue()
    assert "…" not in printed
    text = [line for line in printed.splitlines() if line.strip()]
    assert len(text) == 4, printed  # headings, a rule, one line for each arm
    assert re.search(r"keystone:k=16 +1999 +50\.0 \[47\.9, 52\.2\]", text[3]), printed
    assert "123.4 ms" in text[3]


def test_markdown():
    text = as_markdown(summarise(rows("first", [0, 1]), ["first"])).splitlines()
    assert text[1] == "| --- | --- | --- | --- |"
    assert text[2].startswith("| first | 2 | 50.0 [")


def a_shard(arm, successes, first=0):
    episodes = tuple(
        EpisodeResult(first + number, "s", 0, 0, bool(success), 1, 1, None, None)
        for number, success in enumerate(successes)
    )
    return ShardResult(Shard(Spec.parse(arm), "a", 0, first, len(episodes)), episodes, 1.0)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_counts_each_episode_once(terminal, monkeypatch):
    monkeypatch.setattr("keystone_robotics.evaluate.progress.INTERVAL", -1.0)
    arms = tuple(map(Spec.parse, ("first", "keystone:k=16")))
    settings = EvaluationConfig("p", "e", ("a",), 4, shard=2, arms=arms)
    console = Console(force_terminal=terminal, file=io.StringIO(), width=100)
    with Watch(console, settings, rows("first", [1, 0, 1]) + rows("medoid:k=3", [1])) as watch:
        watch.add(a_shard("first", [1, 0], first=2), [False, True])
        watch.add(a_shard("keystone:k=16", [1, 1]), [True, True])
        assert (watch.done, watch.before) == (6, 3)
        assert re.fullmatch(r"6/8 episodes, about \d+ min left: first 50\.0 %; keystone:k=16 100\.0 %", watch.line()), (
            watch.line()
        )
    printed = console.file.getvalue()
    assert "keystone:k=16" in printed
    assert ("6/8 episodes" in printed) == (not terminal)
