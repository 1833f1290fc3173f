"""Our runs, LeRobot's and vla-eval's files; and what is said when they are not what they should be."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from runs import write_run

from keystone_robotics.compare.comparison import compare
from keystone_robotics.compare.find import read, read_arms
from keystone_robotics.compare.read_lerobot import read_lerobot
from keystone_robotics.compare.read_vla_eval import read_vla_eval
from keystone_robotics.errors import KeystoneError
from keystone_robotics.records import FILE, Store

VLA_EVAL = Path(__file__).parent / "data" / "vla_eval.json"
OUTCOMES = np.array([[[1, 0], [1, 1], [0, 0]]])


@pytest.fixture
def run(tmp_path):
    arms = {"keystone:k=16": OUTCOMES, "first": OUTCOMES[:, :, ::-1]}
    return write_run(tmp_path / "mine", arms, errors=[("first", 0, 1, 0)])


def test_a_run_gives_its_arms_in_their_order(run):
    ours, plain = read(run)
    assert (ours.name, plain.name) == ("keystone:k=16", "first")
    assert ours.time == ("one round", 6.0)
    assert [one.success for one in ours.episodes] == [True, True, False, False, True, False]
    assert ours.episodes[1].initial_state == "state 0 1"
    failed = plain.episodes[1]
    assert (failed.error, failed.success, failed.initial_state) == ("Traceback: no camera", False, "")


def test_an_unfinished_run_says_so(run):
    (run / "settings.json").write_text(json.dumps({"arms": [], "tasks": ["push"], "episodes": 1000, "repeats": 1}))
    (note,) = read(run)[0].notes
    assert re.fullmatch(r".+ is unfinished: \d+ of 1000 episodes", note)


def test_a_run_that_is_being_written_can_be_read(run):
    with Store(run) as writer:
        writer.claim({"policy": "p"})
        writer.database.execute("BEGIN")
        writer.database.execute("UPDATE episodes SET success = 0")
        assert sum(one.success for one in read(run)[0].episodes) == 3
        writer.database.rollback()


def lerobots(successes, monkeypatch):
    """What LeRobot's own code makes of these outcomes of each task; only the rollouts are left out."""
    from lerobot.scripts import lerobot_eval

    class Nothing:
        training = False

        def __getattr__(self, name):
            return lambda *_, **__: None

    def run_one(group, task, env, **_):
        mine = successes[group, task]
        return group, task, {"sum_rewards": [0.0] * len(mine), "max_rewards": [0.0] * len(mine), "successes": mine}

    monkeypatch.setattr(lerobot_eval, "run_one", run_one)
    envs = {}
    for group, task in successes:
        envs.setdefault(group, {})[task] = Nothing()
    return lerobot_eval.eval_policy_all(envs, Nothing(), *[None] * 4, n_episodes=3)


def test_what_lerobot_writes(tmp_path, monkeypatch):
    info = lerobots({("libero_10", 0): [True, False, True], ("libero_10", 1): [False, False, True]}, monkeypatch)
    path = tmp_path / "mine" / "eval_info.json"
    path.parent.mkdir()
    path.write_text(json.dumps(info))
    (outcomes,) = read(path.parent)
    assert outcomes.name == "mine"
    assert outcomes.tasks == ("libero_10/0", "libero_10/1")
    assert [one.success for one in outcomes.episodes] == [True, False, True, False, False, True]
    assert outcomes.time[0] == "one episode"
    assert read(path)[0].episodes == outcomes.episodes
    result = compare(outcomes, outcomes)
    assert not result.pairing.paired
    assert "no hashes of initial states to compare, and no seeds" in result.pairing.reason
    assert compare(outcomes, outcomes, "trust").pairing.by == "trust"


def test_what_lerobot_returns_for_a_single_environment(tmp_path):
    path = tmp_path / "eval_info.json"
    episodes = [
        {"episode_ix": ix, "sum_reward": 1.0, "max_reward": 0.5, "success": ix > 0, "seed": 1000 + ix}
        for ix in range(3)
    ]
    path.write_text(json.dumps({"per_episode": episodes, "aggregated": {"pc_success": 66.7, "eval_ep_s": 2.5}}))
    outcomes = read_lerobot(path)
    assert [(one.episode, one.success, one.initial_seed) for one in outcomes.episodes] == [
        (0, False, 1000),
        (1, True, 1001),
        (2, True, 1002),
    ]
    assert outcomes.time == ("one episode", 2500.0)
    assert compare(outcomes, outcomes).pairing.by == "seed"


def test_what_vla_eval_writes(tmp_path):
    outcomes = read_vla_eval(VLA_EVAL)
    assert outcomes.tasks == ("open the drawer", "pick up the black bowl")
    assert [one.success for one in outcomes.episodes] == [True, False, False, True, True]
    assert [one.error is not None for one in outcomes.episodes] == [False, False, True, False, False]
    assert {one.initial_seed for one in outcomes.episodes} == {7}
    assert outcomes.time == ("one episode", 10500.0)
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(VLA_EVAL, folder / "LIBERO_aggregate.json")
    assert read(folder)[0].name == "results"
    assert read(folder)[0].episodes == outcomes.episodes
    shutil.copy(VLA_EVAL, folder / "CALVIN_aggregate.json")
    with pytest.raises(
        KeystoneError, match=r"several results have the task .*, give one: CALVIN_aggregate\.json, LIBERO"
    ):
        read(folder)


def two_benchmarks(folder, first_run="8d5c", second_run="8d5c"):
    """What one run of two benchmarks leaves behind; SimplerEnv's tasks are benchmarks of their own."""
    folder.mkdir()
    for run, name in ((first_run, "Simpler_stack"), (second_run, "Simpler_carrot")):
        result = json.loads(VLA_EVAL.read_text())
        result.update(benchmark=name, eval_id=f"{run}-{name}")
        for task in result["tasks"]:
            task["task"] += f" of {name}"
        (folder / f"{name}_aggregate.json").write_text(json.dumps(result))
    return folder


def test_a_run_of_several_benchmarks_of_vla_eval_is_one_arm(tmp_path):
    (outcomes,) = read(two_benchmarks(tmp_path / "k4"))
    assert outcomes.name == "k4"
    assert len(outcomes.tasks) == 4
    assert len(outcomes.episodes) == 10
    assert outcomes.time == ("one episode", 10500.0)
    assert outcomes.settings["benchmark"] == ["Simpler_carrot", "Simpler_stack"]


def test_results_of_several_runs_of_vla_eval_are_not_mixed(tmp_path):
    folder = two_benchmarks(tmp_path / "mixed", second_run="77aa")
    with pytest.raises(
        KeystoneError, match=r"results of 2 runs of vla-eval, give one: Simpler_carrot_aggregate\.json, "
    ):
        read(folder)


def changed(tmp_path, change):
    result = json.loads(VLA_EVAL.read_text())
    change(result)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(result))
    return path


def test_tasks_of_one_name_are_told_apart_by_their_index(tmp_path):
    def merge(result):
        result["tasks"][0]["episodes"] += result["tasks"].pop()["episodes"]

    outcomes = read_vla_eval(changed(tmp_path, merge))
    assert outcomes.tasks == ("pick up the black bowl #0", "pick up the black bowl #1")


def test_a_partial_result_is_marked(tmp_path):
    outcomes = read_vla_eval(changed(tmp_path, lambda result: result.update(partial=True)))
    assert "partial" in outcomes.notes[0]


def test_a_benchmark_without_success_is_refused(tmp_path):
    def rename(result):
        result["tasks"][0]["episodes"][0]["metrics"] = {"completed_subtasks": 3}

    with pytest.raises(KeystoneError, match="no metric 'success', only completed_subtasks"):
        read_vla_eval(changed(tmp_path, rename))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("eval_info.json", "{", "damaged or not JSON"),
        ("eval_info.json", "\x80", "damaged or not JSON"),
        ("eval_info.json", "[]", "is not a result that can be compared"),
        ("eval_info.json", '{"per_task": [{"task_group": "a"}]}', "not in the format of lerobot-eval"),
        ("eval_info.json", '{"per_task": 3}', "not in the format of lerobot-eval"),
        ("eval_info.json", '{"per_task": []}', "holds no episode"),
        ("eval_info.json", '{"per_episode": [{"episode_ix": 0, "success": 0.5, "seed": 1}]}', "true or false, got 0.5"),
        ("x.json", '{"benchmark": "a", "tasks": [{"task": "b"}]}', "not in the format of vla-eval"),
        ("x.json", '{"benchmark": "a", "tasks": []}', "holds no episode"),
        ("x.json", '{"hello": 1}', "expected the folder of a `keystone eval`"),
    ],
)
def test_wrong_files_are_refused_with_the_reason(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(KeystoneError, match=message):
        read(path)


def test_a_damaged_store_is_refused(tmp_path):
    (tmp_path / FILE).write_bytes(b"no database at all" * 100)
    with pytest.raises(KeystoneError, match="damaged"):
        read(tmp_path)


def test_missing_and_empty_folders(tmp_path, run):
    with pytest.raises(KeystoneError, match=r"does not exist \(did you mean .*mine\?\): expected"):
        read(tmp_path / "mien")
    for number in range(40):
        (tmp_path / f"run-{number}").mkdir()
    with pytest.raises(KeystoneError) as missing:
        read(tmp_path / "run-x")
    assert str(missing.value).count("run-") == 6, "the path and the five nearest"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(KeystoneError, match="holds no result"):
        read(empty)
    with Store(empty) as store:
        store.claim({"policy": "p"})
    with pytest.raises(KeystoneError, match="no episode yet"):
        read(empty)


def test_arms_are_chosen_by_name(run):
    assert [one.name for one in read_arms(run, None)] == ["keystone:k=16", "first"]
    assert [one.name for one in read_arms(run, None, ("first", "keystone:k=16"))] == ["first", "keystone:k=16"]
    assert [one.name for one in read_arms(run, run, ("first",))] == ["first", "first"]
    assert [one.name for one in read_arms(run, run / FILE, ("first", "keystone:k=16"))] == ["first", "keystone:k=16"]
    assert [one.name for one in read_arms(run, VLA_EVAL, ("first",))] == ["first", "vla_eval"]


@pytest.mark.parametrize(
    ("second", "arms", "message"),
    [
        (False, ("first", "keystone:k=61"), "no arm 'keystone:k=61': did you mean 'keystone:k=16'"),
        (False, ("first",), "a comparison needs two"),
        (True, (), "holds 2 arms, say which with --arms: keystone:k=16, first"),
        (True, ("first", "first", "first"), "expected one name, or A's and B's"),
    ],
)
def test_unclear_arms_are_refused(run, second, arms, message):
    with pytest.raises(KeystoneError, match=message):
        read_arms(run, run if second else None, arms)


def test_the_folders_of_a_tuning_run(tmp_path):
    """Their parent holds no result, and says where there are some; in the race everything is compared with `first`."""
    outcomes = np.zeros((1, 4, 1), int)
    race = write_run(tmp_path / "race", {"core-mean:k=16": outcomes, "first:steps=2": outcomes, "first": outcomes})
    (race / "settings.json").unlink()
    assert read_arms(race, None)[0].name == "first"
    with pytest.raises(KeystoneError, match=r"holds no result, but there are in .*race: give one of them"):
        read(tmp_path)
