"""The table of `keystone eval`."""

import io
import json
import re

import pytest
from rich.console import Console

from keystone_robotics.compare.summary import summarise, summary_rows, summary_table, write_summary
from keystone_robotics.records import EpisodeRecord

ARMS = ["first", "keystone:k=16"]


def rows(arm, outcomes, task="a", repeat=0, error=None, **given):
    values = {"steps": 9, "rounds": 3, "consensus": None, "latency_ms": 2.0, "noise_seed": 0, **given}
    return [
        EpisodeRecord(
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
    strangers = [EpisodeRecord(**{**vars(row), "initial_state": f"other{row.episode}"}) for row in strangers]
    _, two = summarise(rows("first", [0, 0, 0, 0]) + strangers, ARMS)
    assert two.difference == 1.0
    assert two.pairing.startswith("unpaired: the initial states differ in 4 of 4 episodes")
    console = Console(width=200, file=io.StringIO())
    console.print(summary_table(summarise(rows("first", [0, 0, 0, 0]) + strangers, ARMS)))
    assert "\nkeystone:k=16 is unpaired" in console.file.getvalue()


def test_an_arm_that_crashes_does_not_profit_from_it():
    """The hash of the initial state is unknown where a worker died."""
    crashed = [
        EpisodeRecord(**{**vars(row), "initial_state": ""})
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
    plain = summary_rows(summarise(rows("first", [0, 1]), ["first"]))
    assert plain[0] == ["arm", "n", "success, %", "one round"]
    everything = (
        rows("first", [0, 1]) + rows("first", [0, 1], repeat=1) + rows("keystone:k=16", [0, 1], error="it broke")
    )
    heading = summary_rows(summarise(everything, ARMS))[0]
    assert heading == ["arm", "n", "success, %", "± repeats", "Δ to the first", "one round", "errors"]
    unmeasured = summary_rows(summarise(rows("first", [0, 1], latency_ms=None), ["first"]))
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
    console.print(summary_table(summarise(everything, ARMS)))
    printed = console.file.getvalue()
    assert "…" not in printed
    text = [line for line in printed.splitlines() if line.strip()]
    assert len(text) == 4, printed  # headings, a rule, one line for each arm
    assert re.search(r"keystone:k=16 +1999 +50\.0 \[47\.9, 52\.2\]", text[3]), printed
    assert "123.4 ms" in text[3]


@pytest.mark.parametrize("width", [10, 24, 40, 60])
def test_a_narrow_terminal_never_splits_the_name_of_an_arm(width):
    arms = ["first", "core-mean:k=16,steps=2,temperature=0.8,execute=4"]
    console = Console(width=width, file=io.StringIO())
    console.print(summary_table(summarise([row for arm in arms for row in rows(arm, [0, 1])], arms)), crop=False)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert set(arms) <= set(lines)
    assert sum("success, % 50.0" in line for line in lines) == 2


def test_files(tmp_path):
    write_summary(tmp_path, summarise(rows("first", [0, 1]), ["first"]))
    assert json.loads((tmp_path / "summary.json").read_text())[0]["rate"] == 0.5
    text = (tmp_path / "summary.md").read_text().splitlines()
    assert text[1] == "| --- | --- | --- | --- |"
    assert text[2].startswith("| first | 2 | 50.0 [")
