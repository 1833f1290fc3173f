"""What is said about the arms of an experiment."""

import itertools

import pytest

from keystone_robotics.environments import BENCHMARKS
from keystone_robotics.errors import KeystoneError
from keystone_robotics.records import EpisodeRecord
from keystone_study.reproduce.analysis import Difference, analyse
from keystone_study.reproduce.experiment import EXPERIMENTS, Experiment, Section
from keystone_study.reproduce.main import result_of
from keystone_study.reproduce.page import file_and_command
from keystone_study.reproduce.tables import LEGEND, by_task, details, points
from keystone_study.reproduce.workloads import CHOOSING_SEED, MAIN_WORKLOADS, WORKLOADS, Workload

ARMS = ("first", "first:temperature=0.6", "keystone:k=16", "core-mean:k=16", "core-mean:k=16,temperature=0.8")
EXPERIMENT = Experiment("main", "A test", (Section("one", ARMS[:2]), Section("many", ARMS[2:])), ())
WORKLOAD = Workload("toy", "A toy", "policy", "toy", 20, 2, "Nothing to know.")


def rows_with(rates: dict[str, float], tasks=("a", "b"), states=20, repeats=2):
    """The first so many states succeed in every repeat."""
    return [
        EpisodeRecord(
            arm=arm, task=task, repeat=repeat, episode=state, success=state < rate * states, steps=1, rounds=1,
            initial_state=f"{task}{state}", initial_seed=state, noise_seed=0, consensus=None, latency_ms=1.0 + index,
            error=None,
        )
        for index, (arm, rate) in enumerate(rates.items())
        for task, repeat, state in itertools.product(tasks, range(repeats), range(states))
    ]  # fmt: skip


RATES = dict(zip(ARMS, (0.4, 0.6, 0.5, 0.9, 0.6), strict=True))


def test_every_arm_is_compared_with_one_sample_and_with_the_best_that_costs_nothing():
    result = analyse(EXPERIMENT, WORKLOAD, rows_with(RATES))
    assert result.control == "first:temperature=0.6"
    arms = {one.arm: one for one in result.arms}
    assert arms["first"].to_first is None
    assert arms["first"].to_control is None
    assert arms["first:temperature=0.6"].to_control is None
    paper, ours = arms["keystone:k=16"], arms["core-mean:k=16"]
    assert paper.to_first.value == pytest.approx(0.1)
    assert paper.to_control.value == pytest.approx(-0.1)
    assert ours.to_control.value == pytest.approx(0.3)
    assert ours.to_control.clear
    assert ours.to_control.interval[0] > 0
    assert ours.to_paper.value == pytest.approx(0.4)
    assert paper.to_paper is None
    assert ours.by_task == {"a": 0.9, "b": 0.9}
    assert ours.rate.episodes == 80
    assert ours.rate.states == 40
    assert result.flips == 0.0


def test_the_policy_as_it_is_may_be_the_best_that_costs_nothing():
    result = analyse(EXPERIMENT, WORKLOAD, rows_with({**RATES, "first:temperature=0.6": 0.3}))
    assert result.control == "first"


def test_episodes_that_cannot_be_paired_are_not_compared():
    rows = rows_with(RATES)
    strange = [row if row.arm != ARMS[2] else EpisodeRecord(**{**vars(row), "initial_state": "?"}) for row in rows]
    with pytest.raises(Exception, match="pair"):
        analyse(EXPERIMENT, WORKLOAD, strange)


def test_tables_show_every_arm_with_its_section():
    result = analyse(EXPERIMENT, WORKLOAD, rows_with(RATES))
    table = details(EXPERIMENT, result)
    assert all(f"`{arm}`" in table for arm in ARMS)
    assert table.index("*one*") < table.index("`first`") < table.index("*many*") < table.index("`keystone:k=16`")
    assert "`first:temperature=0.6` (control)" in table
    assert "2 tasks × 20 initial states × 2 repeats" in table
    assert "**+30.0**" in table
    assert "| a | 40 | 90 |" in by_task(result, ("first", "core-mean:k=16"))
    assert "**Bold**" in LEGEND
    assert points(None) == "–"


def test_what_is_reported_was_not_chosen_on():
    """The tasks of the main table and those on which rules and settings were chosen have nothing in common."""
    from keystone_robotics.policies.load import shipped_policies, trained_on

    chosen_on = set(trained_on("metaworld-mixed"))
    assert {one.policy for one in WORKLOADS.values() if not one.training} <= set(shipped_policies())
    for name in ("metaworld-mixed", "metaworld-noisy", "metaworld-clean", "metaworld-undertrained", "metaworld-easy"):
        tasks = set(trained_on(WORKLOADS[name].policy))
        assert len(tasks) >= 6
        assert not tasks & chosen_on
    for name in EXPERIMENTS["ablations"].workloads:
        assert WORKLOADS[name].settings(("first",)).seed != CHOOSING_SEED
    for name in MAIN_WORKLOADS:
        assert WORKLOADS[name].choosing().seed == CHOOSING_SEED
        assert WORKLOADS[name].reported().seed not in (CHOOSING_SEED, WORKLOADS[name].seed)
    for name in EXPERIMENTS["choosing"].workloads:
        assert WORKLOADS[name].settings(("first",)).seed == CHOOSING_SEED


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_experiments_name_what_there_is(experiment):
    for workload in experiment.workloads:
        arms = list(experiment.arms(workload))
        assert arms[0] == "first"
        assert {"keystone:k=16", "first:temperature=0.6"} <= set(arms)
    assert set(experiment.workloads) <= set(WORKLOADS)


def test_arms_may_be_for_some_workloads_only():
    assert "core-mean:k=16,gripper=3" in EXPERIMENTS["ablations"].arms("metaworld-mixed")
    assert "core-mean:k=16,gripper=3" not in EXPERIMENTS["ablations"].arms("pusht")


def test_what_holm_takes_back_is_not_bold():
    assert points(Difference(0.1, (0.02, 0.18), 0.01, 0.02)).startswith("**")
    assert not points(Difference(0.1, (0.02, 0.18), 0.02, 0.2)).startswith("**")


def test_files_of_many_workloads_have_a_name_that_file_systems_take():
    few, command = file_and_command("main", ["pusht", "diffusion"], some=True, quick=False)
    assert (few, command) == ("main-pusht-diffusion", "keystone reproduce main --workloads pusht diffusion")
    names = {file_and_command("main", MAIN_WORKLOADS[:n], some=True, quick=False)[0] for n in range(1, 16)}
    assert len(names) == 15
    assert max(map(len, names)) < 200


@pytest.mark.parametrize("workload", [one for one in WORKLOADS.values() if one.training], ids=lambda one: one.name)
def test_a_policy_that_is_not_shipped_is_made_by_a_command(workload, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert set(workload.tasks) <= set(BENCHMARKS[workload.env].tasks())
    with pytest.raises(KeystoneError, match=f"keystone train .* --out {workload.policy}"):
        result_of(workload.quick(), tmp_path / "out", executor=None, console=None)
