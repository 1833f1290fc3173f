"""``keystone monitor``: on stored runs whose failures are known to disagree, and what it refuses."""

import json
import logging
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from clouds import cloud

from keystone_robotics.cli import main
from keystone_robotics.errors import KeystoneError
from keystone_robotics.monitor import Calibration, read_run
from keystone_robotics.monitor.observed import observe_record
from keystone_robotics.records import FILE, EpisodeRecord, RoundRecord, Store
from keystone_robotics.sample.adapter import Window
from keystone_robotics.select import ActionSpace, select


def store_run(folder, seed=0, successes=24, failures=12, wild=1.0, arms=("medoid:k=8",), k=8, **identity):
    """A run whose failures are drawn wider; two tasks of which one is twice as wide."""
    random = np.random.default_rng(seed)
    with Store(folder) as store:
        store.claim({"policy": "f", "env": "toy", "seed": seed, "keep_rounds": True, **identity})
        store.add_arms(list(arms))
        for arm in arms:
            for task, width in (("narrow", 0.05), ("wide", 0.1)):
                outcomes = random.permutation([True] * (successes // 2) + [False] * (failures // 2))
                episodes = []
                for number, success in enumerate(outcomes):
                    spread = width if success else width + wild
                    rounds = [_round(random, i, spread, k) for i in range(4 if success else 9)]
                    episodes.append(
                        EpisodeRecord(task, number, bool(success), arm=arm, rounds=len(rounds), initial_seed=number,
                                      noise_seed=number, kept_rounds=tuple(rounds))
                    )  # fmt: skip
                if episodes:
                    store.add_shard(episodes, 1.0)
        store.note("weights", "w")
    (folder / "settings.json").write_text(json.dumps({"policy": "mine"}))
    return str(folder)


def _round(random, number, spread, k):
    chunks = cloud(random, k, spread=spread).astype(np.float32)
    space = ActionSpace(steps=range(1, 5))
    one = select(chunks, "medoid", space)
    return RoundRecord(
        number, 4 * number, chunks, one.labels, one.index, False, one.consensus, one.spread,
        np.zeros((4, 3), np.float32), one.dispersion, one.median_distance, space, Window(3, 1, 4, (0,)),
    )  # fmt: skip


def test_calibrate_then_evaluate_on_another_run(tmp_path, capsys):
    calibration, fresh = store_run(tmp_path / "a", 0), store_run(tmp_path / "b", 1)
    alarm = str(tmp_path / "alarm.json")
    assert (
        main(["monitor", "calibrate", calibration, "--score", "dispersion", "--false-alarms", "0.1", "--out", alarm])
        == 0
    )
    said = capsys.readouterr().out
    assert "rings in at most 10 %" in said
    assert "12 failures: 1.00" in said
    made = Calibration.load(tmp_path / "alarm.json")
    assert (made.n, made.failures, made.spec, made.weights, made.execute) == (24, 12, "medoid:k=8", "w", 4)
    assert (made.policy, made.fingerprint, made.tasks) == ("mine", "f", ("narrow", "wide"))
    out = tmp_path / "found.json"
    assert main(["monitor", "evaluate", fresh, "--alarm", alarm, "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert "24 successes, 12 failures" in said
    assert "note:" not in said
    (found,) = json.loads(out.read_text())["alarms"]
    assert found["true_positives"] == [1.0, 1.0, 1.0]
    assert found["false_alarms"][0] <= 0.25
    assert found["left"][0] > 0.8
    assert main(["monitor", "evaluate", calibration, "--alarm", alarm]) == 0
    assert "initial states of the same seed" in capsys.readouterr().out


def test_scores_side_by_side_and_where_none_works(tmp_path, capsys):
    out = tmp_path / "scores.json"
    assert main(["monitor", "scores", store_run(tmp_path / "a"), "--json", str(out)]) == 0
    found = json.loads(out.read_text())["scores"]
    assert found["dispersion"]["direction"] == "high"
    assert found["dispersion"]["auroc"][1] > 0.9
    alike = store_run(tmp_path / "b", wild=0.0)
    capsys.readouterr()
    assert main(["monitor", "scores", alike]) == 0
    table = capsys.readouterr().out
    alarm = tmp_path / "alarm.json"
    flat = {"dispersion", "variance", "ace", "overlap-distance", "stac"}
    silent = [line.split()[0] for line in table.splitlines() if line.endswith(" no")]
    assert flat & set(silent), table
    name = next(iter(flat & set(silent)))
    assert main(["monitor", "calibrate", alike, "--score", name, "--out", str(alarm)]) == 2
    assert f"{name} does not tell the 12 failures from the 24 successes" in capsys.readouterr().err
    assert not alarm.exists()
    assert main(["monitor", "calibrate", alike, "--score", name, "--out", str(alarm), "--force"]) == 0
    assert "written with --force" in capsys.readouterr().out


def test_one_candidate_has_only_the_score_that_needs_no_other(tmp_path, capsys):
    run, out = store_run(tmp_path / "a", arms=("first",), k=1), tmp_path / "scores.json"
    assert main(["monitor", "scores", run, "--arm", "first", "--json", str(out)]) == 0
    table = capsys.readouterr().out
    assert (table.count("needs K > 1"), table.count("needs K > 2")) == (8, 1)
    assert list(json.loads(out.read_text())["scores"]) == ["stac-single"]


def test_a_few_failures_are_not_taken_for_evidence(tmp_path, capsys):
    run, alarm = store_run(tmp_path / "a", failures=4), str(tmp_path / "alarm.json")
    assert main(["monitor", "scores", run, "--json", str(tmp_path / "scores.json")]) == 0
    said = capsys.readouterr().out
    assert "too few failures (4) to say which score tells failures from successes" in said
    assert " yes" not in said
    assert json.loads((tmp_path / "scores.json").read_text())["caution"] == "too few failures (4) to say"
    assert main(["monitor", "calibrate", run, "--out", alarm]) == 0
    assert "4 failures in the run: whether the score foretells any is untested" in capsys.readouterr().out
    assert main(["monitor", "evaluate", run, "--alarm", alarm]) == 0
    assert "too few failures (4) to say how alarms do" in capsys.readouterr().out


def test_kept_rounds_say_what_counted(tmp_path):
    store_run(tmp_path / "a", successes=2, failures=0)
    with Store(tmp_path / "a") as store:
        record = store.rounds(store.episodes()[0].key)[0]
    assert tuple(record.space.steps) == (1, 2, 3, 4)
    assert record.window == Window(3, 1, 4, (0,))
    seen = observe_record(record)
    assert seen.counted.shape == (8, 4, 3)
    assert (seen.start, seen.executed, seen.relative) == (1, 4, (0,))


@pytest.mark.parametrize(
    ("make", "command", "says"),
    [
        ({}, ["calibrate", "--score", "dispersal"], "there is no score 'dispersal': did you mean 'dispersion'"),
        (
            {},
            ["calibrate", "--false-alarms", "0.01"],
            "24 successful episodes are too few for a false-alarm rate of 0.01: 99",
        ),
        ({}, ["calibrate", "--arm", "medoid:k=9"], "has no arm 'medoid:k=9': did you mean 'medoid:k=8'"),
        ({"keep_rounds": False}, ["calibrate"], "holds no rounds: roll out with `keystone eval --keep-rounds`"),
        ({"k": 1, "arms": ("first",)}, ["calibrate"], "K = 1 in all arms (first)"),
        (
            {"k": 1, "arms": ("first",)},
            ["calibrate", "--arm", "first"],
            "its rounds have K = 1, and the score needs 2 candidates; choose another --arm",
        ),
        ({"arms": ("medoid:k=8", "keystone:k=8")}, ["scores"], "several arms with candidates, choose one"),
        ({"failures": 0}, ["scores"], "24 successes and 0 failures; both are needed"),
        ({"successes": 0, "failures": 0}, ["scores"], "holds no episode yet"),
        ({}, ["evaluate", "--alarm", "none.json"], "cannot read none.json"),
        (None, ["scores"], "holds no episodes.sqlite"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(make, command, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = str(tmp_path / "none") if make is None else store_run(tmp_path / "a", **make)
    assert main(["monitor", command[0], run, *command[1:]]) == 2
    (said,) = capsys.readouterr().err.splitlines()  # no empty line of a progress bar
    assert said.startswith("keystone: ")
    assert says in said
    assert not (tmp_path / "alarm.json").exists()


def test_a_seed_that_is_no_number_is_one_line(tmp_path):
    run = Path(store_run(tmp_path, successes=2, failures=0))
    with sqlite3.connect(run / FILE) as database:
        database.execute("UPDATE meta SET value = json_set(value, '$.seed', 'x') WHERE key = 'identity'")
    with pytest.raises(KeystoneError, match="its seed is 'x', expected a whole number"):
        read_run(run)


def test_an_alarm_for_something_else_is_noted(tmp_path, capsys):
    alarm = tmp_path / "alarm.json"
    Calibration("stac", "high", "constant", (0.5,), 3, 0.05, 19, fingerprint="g", policy="yours", spec="medoid:k=4",
                tasks=("narrow",), execute=8).save(alarm)  # fmt: skip
    assert main(["monitor", "evaluate", store_run(tmp_path / "a"), "--alarm", str(alarm)]) == 0
    said = capsys.readouterr().out
    for text in (
        "another policy (yours)",
        "calibrated for medoid:k=4, the run has medoid:k=8",
        "calibrated with 8 executed steps of a chunk, the run has 4",
        "not calibrated on wide",
    ):
        assert text in said


def test_the_arm_of_the_calibration_is_evaluated(tmp_path, capsys):
    alarm = tmp_path / "alarm.json"
    Calibration("variance", "high", "constant", (0.5,), 3, 0.05, 19, spec="keystone:k=8").save(alarm)
    run = store_run(tmp_path / "a", arms=("medoid:k=8", "keystone:k=8"))
    assert main(["monitor", "evaluate", run, "--alarm", str(alarm)]) == 0
    assert capsys.readouterr().out.startswith("keystone:k=8 in")


def test_a_run_of_0_1_0_can_be_scored(old_run, caplog):
    with caplog.at_level(logging.WARNING):
        read = read_run(old_run, "keystone:k=4")
    assert read.errors == 2 * 2  # two episodes of one task fail in each repeat
    for one in read.episodes:
        assert len(one.scores["variance"]) == one.record.rounds
        assert np.isnan(one.scores["dispersion"]).all()  # it was not stored then
        assert np.isfinite(one.scores["variance"]).all()
        assert np.isfinite(one.scores["stac"][1:]).all()


@pytest.fixture
def old_run(tmp_path):
    import shutil
    from pathlib import Path

    return Path(shutil.copytree(Path(__file__).parents[1] / "records/data/run-0.1.0", tmp_path / "old"))
