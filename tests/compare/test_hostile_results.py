"""Names and values in the results of others: only what prints reaches the terminal, and every error is one line."""

import json
import sqlite3

import pytest

from fuzz.files import LEROBOT, SINGLE, VLA_EVAL
from keystone_robotics.cli import main
from keystone_robotics.compare import files
from keystone_robotics.compare.read_run import measured_latencies
from keystone_robotics.records import FILE, EpisodeRecord, Store
from keystone_robotics.tables import as_rich, as_text, from_columns

ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e\r\nok"


def write(folder, name, document):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(document if isinstance(document, str) else json.dumps(document))
    return folder / name


def printed(capsys):
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert all(line.isprintable() for line in text.split("\n")), text
    return captured


def test_escape_sequences_in_names_are_shown(tmp_path, capsys):
    document = {**LEROBOT, "per_task": [{**task, "task_group": ESCAPE} for task in LEROBOT["per_task"]]}
    paths = [write(tmp_path / f"{ESCAPE.replace('/', '')} {arm}", "eval_info.json", document) for arm in "ab"]
    assert main(["compare", *map(str, paths)]) == 0
    assert "\\x1b]0;owned\\x07\\x1b[2J\\u202e\\r\\nok/0" in printed(capsys).out
    with Store(tmp_path / "run") as store:
        store.claim({"policy": "p"})
        for arm in (ESCAPE, "first"):
            store.add_shard([EpisodeRecord(ESCAPE, n, True, 0, arm, f"{n}", n, n) for n in range(3)], 1.0)
    assert main(["compare", str(tmp_path / "run")]) == 0
    assert "\\x1b[2J" in printed(capsys).out
    assert main(["compare", str(tmp_path / ESCAPE)]) == 2
    assert "\\x1b[2J" in printed(capsys).err


def test_tables_hold_no_markup_and_no_control_characters(capsys):
    from rich.console import Console

    rows = from_columns({"arm": [ESCAPE, "[red]x[/]"], "n": ["1", "2"]})
    assert as_text(rows).count("\n") == 2
    Console(width=200).print(as_rich(rows, f"[/] {ESCAPE}"))
    shown = printed(capsys).out
    assert "[red]x[/]" in shown
    assert "[/] \\x1b]0;owned" in shown


DEEP = "[" * 100_000
WRONG = {
    "deep": ("eval_info.json", DEEP, "is damaged or not JSON: RecursionError"),
    "long number": ("eval_info.json", f'{{"per_task": {"9" * 5000}}}', "is damaged or not JSON: ValueError"),
    "huge episode": ("eval_info.json", {"per_episode": [{"episode_ix": 10**400, "success": 1, "seed": 1}]}, "64 bits"),
    "infinite episode": (
        "eval_info.json",
        '{"per_episode": [{"episode_ix": 1e999, "success": 1, "seed": 1}]}',
        "OverflowError",
    ),
    "huge seed": ("eval_info.json", {"per_episode": [{"episode_ix": 0, "success": 1, "seed": 10**400}]}, "64 bits"),
    "seed of another type": (
        "eval_info.json",
        {"per_episode": [{"episode_ix": 0, "success": 1, "seed": []}]},
        "TypeError",
    ),
    "huge success": (
        "eval_info.json",
        {"per_episode": [{"episode_ix": 0, "success": 10**400, "seed": 1}]},
        "true or false",
    ),
    "NaN": ("eval_info.json", '{"per_episode": [{"episode_ix": 0, "success": NaN, "seed": 1}]}', "true or false"),
    "tasks of another type": ("eval_info.json", {"per_task": 7}, "not in the format of lerobot-eval: TypeError"),
    "overall of another type": ("eval_info.json", {**LEROBOT, "overall": [3]}, "not in the format of lerobot-eval"),
    "vla-eval, seed": ("x_aggregate.json", {**VLA_EVAL, "seed": {}}, "not in the format of vla-eval: TypeError"),
    "vla-eval, tasks": ("x_aggregate.json", {**VLA_EVAL, "tasks": [[]]}, "not in the format of vla-eval"),
    "vla-eval, deep": ("x_aggregate.json", DEEP, "RecursionError"),
    "not UTF-8": ("eval_info.json", "\udcff", None),
}


@pytest.mark.parametrize(("name", "document", "says"), WRONG.values(), ids=WRONG)
def test_wrong_files_end_in_one_line(tmp_path, capsys, name, document, says):
    if says is None:
        tmp_path.joinpath(name).write_bytes(b"\xff\xfe{}")
        path, says = tmp_path / name, "is damaged or not JSON"
    else:
        path = write(tmp_path, name, document)
    assert main(["compare", str(path), str(path)]) == 2
    error = printed(capsys).err
    assert says in error
    assert (error.count("\n"), len(error) < 600) == (1, True)


@pytest.mark.parametrize("seconds", [10**400, float("nan"), float("inf"), "fast", -1, [], True])
def test_a_time_that_is_none_is_left_out(tmp_path, capsys, seconds):
    path = write(tmp_path, "eval_info.json", {**SINGLE, "aggregated": {"eval_ep_s": seconds}})
    assert main(["compare", str(path), str(path)]) == 0
    assert "one episode" not in printed(capsys).out


def test_a_file_of_any_size_is_not_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_FILE", 1 << 20)
    path = tmp_path / "eval_info.json"
    with path.open("wb") as file:
        file.truncate(5 << 20)
    assert main(["compare", str(path), str(path)]) == 2
    assert "has 5 MB: expected a result of at most 1 MB" in printed(capsys).err


def test_settings_of_a_run_may_hold_anything(tmp_path, capsys):
    with Store(tmp_path) as store:
        store.claim({"policy": "p"})
        for arm in ("first", "medoid:k=4"):
            store.add_shard([EpisodeRecord("t", n, True, 0, arm, f"{n}", n, n) for n in range(3)], 1.0)
    for settings in (
        DEEP,
        "[]",
        '{"arms": [{}], "tasks": [[]], "episodes": "x", "repeats": NaN}',
        '{"arms": 3, "tasks": null}',
    ):
        (tmp_path / "settings.json").write_text(settings)
        assert main(["compare", str(tmp_path)]) == 0
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE meta SET value = ?", (DEEP,))
    assert main(["compare", str(tmp_path)]) == 2
    assert "is damaged: a row of the table meta" in printed(capsys).err


def test_times_of_a_database_that_are_none_do_not_count():
    times = [None, 5.0, -1.0, float("inf"), 1e308, 1e308]  # the mean of the last two is no float
    episodes = [EpisodeRecord("push", number, True, latency_ms=time) for number, time in enumerate(times)]
    assert measured_latencies(episodes) == [5.0]
