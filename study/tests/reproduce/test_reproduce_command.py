"""``keystone reproduce`` on a toy benchmark, and what it refuses."""

import json

import pytest

from keystone_robotics.cli import main
from keystone_study.reproduce import figure1, figure2, run
from keystone_study.reproduce.workloads import WORKLOADS, Workload
from toy import save_random_flow, table


@pytest.fixture
def toy_workloads(tmp_path, monkeypatch):
    """Every workload becomes a toy."""
    policy = str(save_random_flow(tmp_path / "policy", horizon=16))
    toys = {
        name: Workload(name, one.title, policy, f"toy:Toy?folder={tmp_path}", 4, 2, one.about, ("reach",))
        for name, one in WORKLOADS.items()
    }
    monkeypatch.setattr(run, "WORKLOADS", toys)
    monkeypatch.setattr(figure1, "WORKLOADS", toys)


def test_main_and_ablations_share_episodes(toy_workloads, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["--workloads", "pusht", "--out", str(out)]
    assert main(["reproduce", "main", *command]) == 0
    found = json.loads((out / "main-pusht.json").read_text())
    (workload,) = found["workloads"]
    assert [one["arm"] for one in workload["arms"]][:2] == ["first", "first:temperature=0.8"]
    assert workload["arms"][0]["rate"]["episodes"] == 8
    page = (out / "main-pusht.md").read_text()
    assert "| PushT | 8 |" in page
    assert "keystone reproduce main --workloads pusht" in page
    before = table(out / "runs/pusht")
    capsys.readouterr()
    assert main(["reproduce", "main", *command]) == 0
    assert table(out / "runs/pusht") == before
    assert f"{len(before)} already stored" in capsys.readouterr().out
    assert main(["reproduce", "ablations", *command]) == 0
    assert f"{len(before) // 2} already stored" in capsys.readouterr().out
    after = table(out / "runs/pusht")
    assert not (out / "main.json").exists()  # a part must not take the place of the whole
    assert [row for row in after if row in before] == before
    assert len(after) > len(before)
    assert "`keystone:k=16,clusters=4`" in (out / "ablations-pusht.md").read_text()


def test_a_quick_run_is_marked_and_kept_apart(toy_workloads, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["reproduce", "main", "--quick", "--workloads", "pusht", "--out", str(out)]) == 0
    page = (out / "quick/main-pusht.md").read_text()
    assert "nothing can be concluded" in page
    assert page in capsys.readouterr().out
    assert not (out / "main-pusht.md").exists()


def test_figure_1_is_drawn_and_counted(toy_workloads, tmp_path, monkeypatch):
    out = tmp_path / "out"
    assert main(["reproduce", "figure1", "--quick", "--out", str(out)]) == 0
    written = out / "quick"
    for name in ("figure1.png", "figure1.svg", "figure1-ranks.png", "figure1-ranks.svg"):
        assert (written / name).stat().st_size > 5000
    found = json.loads((written / "figure1.json").read_text())
    one = found["rounds"][0]
    assert sorted(one["order"]) == list(range(16))
    assert len(one["success"]) == 16
    assert f"{len(found['rounds'])} rounds of 3 episodes" in (written / "figure1.md").read_text()

    class NotAgain:
        def __init__(self, *_):
            raise AssertionError("what was branched is stored")

    monkeypatch.setattr(figure1, "Brancher", NotAgain)
    (written / "figure1.json").unlink()
    assert main(["reproduce", "figure1", "--quick", "--out", str(out)]) == 0
    assert json.loads((written / "figure1.json").read_text())["rounds"] == found["rounds"]


def test_figure_2_is_measured_on_one_policy_of_each_class(tmp_path, monkeypatch):
    monkeypatch.setattr(figure2, "KS", (1, 4))
    monkeypatch.setattr(figure2, "QUICK_ROUNDS", 2)
    assert main(["reproduce", "figure2", "--quick", "--out", str(tmp_path)]) == 0
    written = tmp_path / "quick"
    found = json.loads((written / "figure2.json").read_text())["profiles"]
    assert [one["adapter"].partition(",")[0] for one in found] == ["encode/sample", "diffusion"]
    for one in found:
        assert [entry["k"] for entry in one["costs"]] == [1, 4]
        assert (written / f"figure2-{one['policy']}.svg").stat().st_size > 5000
    assert "keystone profile POLICY" in (written / "figure2.md").read_text()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["main", "--workloads", "push"], "did you mean 'pusht'"),
        (["figure1", "--workloads", "pusht"], "has a workload of its own"),
        (["main", "--workers", "0"], "expected 1 or more"),
    ],
)
def test_what_is_wrong_is_said(args, says, tmp_path, capsys):
    assert main(["reproduce", *args, "--out", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()
