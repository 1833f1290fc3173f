"""``keystone reproduce adaptive`` on a toy benchmark."""

import json

import pytest

from keystone_robotics.cli import main
from keystone_robotics.spec import Spec
from keystone_study.reproduce import adaptive_run
from keystone_study.reproduce.workloads import CHOOSING_SEED, MAIN_SEED, WORKLOADS, Workload
from toy import save_random_flow, table


@pytest.fixture
def toy_workload(tmp_path, monkeypatch):
    policy = str(save_random_flow(tmp_path / "policy", horizon=12, n_action_steps=8))
    toy = Workload("pusht", "Toy", policy, f"toy:Toy?folder={tmp_path}", 4, 1, "", ("reach",))
    monkeypatch.setitem(WORKLOADS, "pusht", toy)


def test_limits_are_chosen_on_some_states_and_reported_on_others(toy_workload, tmp_path):
    command = ["reproduce", "adaptive", "--quick", "--workloads", "pusht", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    out = tmp_path / "out/quick"
    found = json.loads((out / "adaptive-pusht.json").read_text())
    tables = found["workloads"]["pusht"]
    horizon, k = tables["adaptive horizon"], tables["adaptive K"]
    assert [Spec.parse(row["arm"]).execute for row in horizon[1:7]] == [
        2,
        4,
        8,
        2,
        4,
        None,
    ]  # the last three by the paper
    assert (horizon[0]["arm"] == adaptive_run.UNTUNED) == (len(horizon) == 7)
    assert adaptive_run.UNTUNED in [horizon[0]["arm"], horizon[-1]["arm"]]
    assert Spec.parse(horizon[0]["arm"]).execute_range.most == 8
    assert [row["arm"] for row in k[1:]] == ["core-mean:k=16", "core-mean:k=4"]
    assert horizon[1]["steps"] <= horizon[0]["steps"] <= horizon[3]["steps"]
    assert 4 <= k[0]["drawn"] <= 16
    assert (k[1]["drawn"], k[2]["drawn"]) == (16, 4)
    agree, disagree, expected = k[0]["latency"]
    assert min(agree, disagree) <= expected <= max(agree, disagree)
    assert [agree] == k[2]["latency"]  # where the few agree, the round is theirs
    assert agree < disagree  # two draws
    assert horizon[0]["to_adaptive"] is None
    assert horizon[1]["to_adaptive"] is not None
    folder = out / "runs/pusht/adaptive"
    settings = [json.loads((folder / part / "settings.json").read_text()) for part in ("choosing", "reported")]
    assert [one["seed"] for one in settings] == [CHOOSING_SEED, MAIN_SEED]
    assert "`core-mean:k=16,execute=2`" in (out / "adaptive-pusht.md").read_text()
    rows = table(folder / "reported")
    assert main(command) == 0  # nothing is rolled out or timed again
    assert table(folder / "reported") == rows
    again = json.loads((out / "adaptive-pusht.json").read_text())
    assert again.pop("cpu_hours") > found.pop("cpu_hours")
    assert again == found


def test_fixed_horizons_are_compared_at_the_rounds_of_the_adaptive_one():
    def row(arm, rate, rounds):
        return adaptive_run.ArmRow(arm, rate, 9, rounds, 2.0, 16.0, (1.0,), None)

    fixed = [row(*one) for one in zip(adaptive_run.HORIZONS, (0.9, 0.7, 0.5), (60, 30, 15), strict=True)]
    assert adaptive_run.fixed_at_equal_rounds([row("adaptive", 0.8, 45), *fixed]) == "80.0"
    assert adaptive_run.fixed_at_equal_rounds([row("adaptive", 0.8, 70), *fixed]) == "90.0"
    assert adaptive_run.fixed_at_equal_rounds([row("core-mean:k=4..16", 0.8, 45)]) == "–"
