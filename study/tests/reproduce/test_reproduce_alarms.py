"""``keystone reproduce alarms`` on a toy benchmark, and the scores of states."""

import json

import numpy as np
import pytest
import torch

from keystone_robotics.cli import main
from keystone_robotics.monitor import Detection
from keystone_robotics.monitor.separation import Estimate
from keystone_robotics.records import Store
from keystone_study.reproduce import alarms, alarms_run, state_scores
from keystone_study.reproduce.state_scores import STATE_SCORES
from keystone_study.reproduce.workloads import WORKLOADS, Workload
from toy import save_random_flow, table


@pytest.fixture
def toy_workload(tmp_path, monkeypatch):
    policy = str(save_random_flow(tmp_path / "policy", horizon=8))
    toy = Workload("pusht", "Toy", policy, f"toy:Toy?folder={tmp_path}", 4, 1, "", ("reach",))
    monkeypatch.setitem(WORKLOADS, "pusht", toy)
    monkeypatch.setattr(alarms, "ARMS", {**alarms.ARMS, alarms.MANY: ("stac",)})
    monkeypatch.setattr(alarms, "STATES", 3)
    monkeypatch.setattr(state_scores, "FITTING_STEPS", 5)


def test_all_scores_are_calibrated_on_some_states_and_tried_on_others(toy_workload, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["reproduce", "alarms", "--workloads", "pusht", "--out", str(out)]
    assert main(command) == 0
    found = json.loads((out / "alarms-pusht.json").read_text())
    (workload,) = found["workloads"]
    assert {row["score"] for row in workload["rows"]} >= {"dispersion", "stac", "rnd", "logpzo"}
    folder = out / "runs/pusht/alarms"
    halves = [table(folder / split / "first-k-16") for split in ("calibration", "test")]
    assert not {row.initial_seed for row in halves[0]} & {row.initial_seed for row in halves[1]}
    # The executed candidate does not depend on K: the same episodes, so that scores can be compared on them.
    many = table(folder / "test" / "first-k-256")
    assert [(row.initial_state, row.success, row.steps) for row in many] == [
        (row.initial_state, row.success, row.steps) for row in halves[1]
    ]
    assert all(row["to_stac"] is not None for row in workload["rows"] if row["arm"].startswith("first"))
    page = (out / "alarms-pusht.md").read_text()
    parts = alarms_run.parts_of(found, [alarms.AlarmResult.from_dict(workload)])
    assert page.endswith("\n\n".join(parts) + "\n")  # from the file alone
    assert "| `first:k=256` | stac |" in page
    assert "states | rnd" in page
    (out / "alarms-pusht.json").unlink()
    for path in folder.rglob("episodes.sqlite"):
        path.unlink()  # scores and states are stored: nothing is rolled out or read again
    assert main(command) == 0
    again = json.loads((out / "alarms-pusht.json").read_text())
    assert again.pop("cpu_hours") > found.pop("cpu_hours")
    assert again == found


def test_replayed_states_are_those_of_the_episode(toy_workload, tmp_path):
    out = tmp_path / "out"
    assert main(["reproduce", "alarms", "--quick", "--workloads", "pusht", "--out", str(out)]) == 0
    place = out / "quick/runs/pusht/alarms/test/first-k-16"
    stored = np.load(place / "states.npz")
    with Store(place) as store:
        for number, one in enumerate(store.episodes()):
            actions = [np.zeros((0, 2))]
            for state, kept in zip(stored[str(number)], store.rounds(one.key), strict=True):
                moved = 0.2 * np.concatenate(actions).sum(0)
                np.testing.assert_allclose(state[:2], stored[str(number)][0][:2] + moved, atol=1e-5)
                actions.append(kept.actions)


@pytest.mark.parametrize("name", sorted(STATE_SCORES))
def test_scores_of_states_are_higher_away_from_what_they_were_fitted_to(name, monkeypatch):
    monkeypatch.setattr(state_scores, "FITTING_STEPS", 400)
    torch.manual_seed(0)
    states = torch.randn(500, 3) * torch.tensor([1.0, 0.1, 1.0])
    score = STATE_SCORES[name](states)
    with torch.no_grad():
        near, far = score(torch.randn(200, 3) * torch.tensor([1.0, 0.1, 1.0])), score(torch.randn(200, 3) + 3.0)
    assert far.median() > 3 * near.median()


def test_the_overview_ends_with_the_mean_difference_to_stac():
    def result(title, to_stac):
        known = Estimate(0.7, 0.6, 0.8)
        row = alarms.AlarmRow("first:k=16", "variance", "high", known, known, to_stac, None, None)
        return alarms.AlarmResult(title, title, ("reach",), {"calibration": 9, "test": 9}, (row,))

    some = [result(str(value), Estimate(value, value - 0.1, value + 0.1)) for value in (0.0, 0.1, 0.2)]
    assert alarms_run.overview(some)[1][-1] == "+0.10 [-0.15, +0.35]"
    assert alarms_run.overview([*some, result("other episodes", None)])[1][-1] == "–"


def test_false_alarms_are_counted_around_the_nominal_rate():
    def row(score, rate, separates):
        known = Estimate(0.7, 0.6 if separates else 0.4, 0.8)
        tried = Detection("stac", "high", 100, 50, *[known] * 5, Estimate(rate, 0.0, 0.2), 0.05, known)
        return alarms.AlarmRow(alarms.WATCHED, score, "high", known, known, None, tried, None)

    rows = (row("stac", 0.08, True), row("overlap-distance", 0.13, False), row("ace", 0.01, True))
    both = [alarms.AlarmResult(name, name, ("reach",), {"calibration": 99, "test": 100}, rows) for name in ("a", "b")]
    heading, first, _, every = alarms_run.false_alarm_table(both)
    said = dict(zip(heading, first, strict=True))
    assert said["within ±3 points"] == "1 of 3"  # 8 % is
    assert said["highest, %"] == "13 [0, 20] (overlap-distance, `first:k=16`)"
    assert said["overlap-distance, `first:k=16`, %"] == "13 [0, 20]"
    assert dict(zip(heading, every, strict=True))["within ±3 points"] == "2 of 6"
    random = np.random.default_rng(0)  # successes whose scores are exchangeable
    rank = int(np.ceil(101 * 0.95))
    rates = [(random.random(100) > np.sort(random.random(100))[rank - 1]).mean() for _ in range(4000)]
    share = np.mean(np.abs(np.array(rates) - 0.05) < 0.03 + 1e-9)
    assert alarms_run._share_within(rows[0], rows[0].constant, "constant") == pytest.approx(share, abs=0.03)
    assert alarms_run.written_table(both)[1] == ["`first:k=16`", "6", "4", "4", "2 of 2"]
