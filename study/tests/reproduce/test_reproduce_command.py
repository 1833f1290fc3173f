"""``keystone reproduce`` on a toy benchmark, and what it refuses."""

import json
import shutil
import time

import pytest

from keystone_robotics.cli import main
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import make_executor
from keystone_study.reproduce import best_arm, figure1, figure2
from keystone_study.reproduce.cpu_time import counted_cpu_time
from keystone_study.reproduce.workloads import WORKLOADS, Workload
from toy import save_random_flow, table


@pytest.fixture
def toy_workloads(tmp_path, monkeypatch):
    """Every workload becomes a toy."""
    policy = str(save_random_flow(tmp_path / "policy", horizon=16))
    toys = {
        name: Workload(
            name, one.title, policy, f"toy:Toy?folder={tmp_path}", 4, 2, one.about, ("reach",), chosen_on=(1, 2)
        )
        for name, one in WORKLOADS.items()
    }
    for name, toy in toys.items():
        monkeypatch.setitem(WORKLOADS, name, toy)


def test_ablations_are_resumed_and_a_part_does_not_replace_the_whole(toy_workloads, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["reproduce", "ablations", "--workloads", "pusht", "--out", str(out)]
    assert main(command) == 0
    found = json.loads((out / "ablations-pusht.json").read_text())
    (workload,) = found["workloads"]
    assert [one["arm"] for one in workload["arms"]][:2] == ["first", "first:temperature=0.8"]
    first_cost = found["cpu_hours"]
    page = (out / "ablations-pusht.md").read_text()
    assert "keystone reproduce ablations --workloads pusht" in page
    assert "`keystone:k=16,clusters=4`" in page
    before = table(out / "runs/pusht")
    capsys.readouterr()
    assert main(command) == 0
    assert table(out / "runs/pusht") == before
    assert f"{len(before)} already stored" in capsys.readouterr().out
    assert not (out / "ablations.json").exists()
    assert 0 < first_cost < json.loads((out / "ablations-pusht.json").read_text())["cpu_hours"] < 1


def _burn(worker: object) -> float:
    began = time.process_time()
    while time.process_time() < began + 0.5:
        pass
    return 0.0


def test_the_time_of_workers_counts(tmp_path):
    times = tmp_path / "cpu-seconds.json"
    policy = str(save_random_flow(tmp_path / "policy", horizon=16))
    settings = EvaluationConfig(policy, f"toy:Toy?folder={tmp_path}", ("reach",))
    with counted_cpu_time(times, "burn"), make_executor(1, None) as executor:
        before = time.process_time()
        executor.run_in_worker(settings, _burn)
        own = time.process_time() - before
    assert json.loads(times.read_text())["burn"] > own + 0.5


def test_the_main_study_chooses_on_some_states_and_reports_on_others(toy_workloads, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(best_arm, "SHORTLIST", 2)
    monkeypatch.setattr("keystone_robotics.evaluate.latency.ROUNDS", 2)
    out = tmp_path / "out"
    command = ["reproduce", "main", "--quick", "--workloads", "pusht", "--out", str(out)]
    assert main(command) == 0
    written = out / "quick"
    page = (written / "main-pusht.md").read_text()
    assert "nothing can be concluded" in page
    assert page in capsys.readouterr().out
    assert (written / "frontier-pusht.png").stat().st_size > 5000
    workload = json.loads((written / "main/pusht.json").read_text())
    choices = workload["choices"]
    assert choices["free change"]["tried"] == choices["K candidates"]["tried"] == 50
    assert choices["free change"]["arm"].startswith("first")
    assert not choices["K candidates"]["arm"].startswith("first")
    arms = {one["name"]: one for one in workload["arms"]}
    assert {"first", "keystone:k=16", "core-mean:k=16,steps=2", "mean:k=4,steps=5"} <= set(arms)
    assert arms["first"]["latency"] == 1.0
    assert arms["core-mean:k=16"]["latency"] != arms["core-mean:k=16,steps=1"]["latency"]
    assert {one["arm"] for one in choices.values()} <= set(arms)
    chosen, reported = (table(written / "runs/pusht" / name) for name in ("choosing", "reported"))
    assert not {row.initial_seed for row in chosen} & {row.initial_seed for row in reported}
    assert len({row.arm for row in chosen}) == 100
    assert {row.arm for row in chosen if row.episode == 1} >= {one["arm"] for one in choices.values()}  # on all states
    (written / "main/pusht.json").unlink()
    assert main(command) == 0  # nothing is rolled out or measured again
    assert json.loads((written / "main/pusht.json").read_text()) == workload
    shutil.rmtree(written / "runs")
    (written / "main-pusht.md").unlink()
    assert main(command) == 0  # a finished workload needs no episodes
    assert (written / "main-pusht.md").read_text() == page
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
        (["main", "--workers", "-1"], "expected 0"),
    ],
)
def test_what_is_wrong_is_said(args, says, tmp_path, capsys):
    assert main(["reproduce", *args, "--out", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()
