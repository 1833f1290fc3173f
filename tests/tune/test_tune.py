"""From a command to a recommendation, on real rollouts; interrupted, in processes, and with bad input."""

import json
import shutil

import pytest
import yaml

import keystone_robotics as keystone
from keystone_robotics.cli import main
from keystone_robotics.compare.find import read_arms
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.executors.in_process import InProcess
from keystone_robotics.evaluate.executors.processes import LocalProcesses
from keystone_robotics.policies import load_agent
from keystone_robotics.records import Store
from keystone_robotics.spec import Spec
from keystone_robotics.tune.folder import check_folder, fresh_states, write_settings
from keystone_robotics.tune.limit import LatencyLimit
from keystone_robotics.tune.run import tune
from keystone_robotics.tune.space import WIDE_SPACE
from keystone_robotics.tune.usage import usage

FILES = {
    "tune.json", "tune.md", "recommended.yaml", "latency.json", "settings.json", "confirmations.json", "race", "confirm",
}  # fmt: skip


@pytest.fixture(autouse=True)
def few_latencies(monkeypatch):
    """Not what these tests are about."""
    monkeypatch.setattr("keystone_robotics.evaluate.latency.ROUNDS", 2)


def result(folder):
    return json.loads((folder / "tune.json").read_text())


def keys(folder):
    with Store(folder) as store:
        return store.keys()


def test_on_meta_world_from_the_command_line(tmp_path, capsys):
    command = [
        "tune", "--policy", "metaworld-mixed", "--env", "metaworld", "--tasks", "push-v3", "--max-steps", "16",
        "--arm", "first:steps=default|2,temperature=1|0.6", "--budget", "140", "--latency", "none",
    ]  # fmt: skip
    out = tmp_path / "run"
    assert main([*command, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == FILES
    found = result(out)
    assert found["episodes"] <= 140
    assert len(found["arms"]) == 4
    assert sum(arm["episodes"] for arm in found["arms"]) + 2 * found["confirm_states"] == found["episodes"]
    assert all(arm["latency_ratio"] > 0 for arm in found["arms"])
    assert found["recommended"] in printed
    assert found["headline"] in printed
    confirmed = printed[printed.index("confirmation, on initial states") :].splitlines()
    assert confirmed[1].split()[0] == "arm"
    assert next(line for line in confirmed[2:] if line.startswith("first ")).rstrip().endswith("the policy as it is")
    assert "\n\n\n" not in printed
    # the states of the confirmation come after those of the race
    assert {episode for _, _, _, episode in keys(out / "race")} == set(range(found["race_states"]))
    last = found["race_states"] + found["confirm_states"]
    assert {episode for _, _, _, episode in keys(out / "confirm")} == set(range(found["race_states"], last))
    # its folders are those of an evaluation
    assert read_arms(out / "confirm", None, ())[0].name == "first"
    # what is recommended can be attached
    spec = Spec.parse(yaml.safe_load((out / "recommended.yaml").read_text())["spec"])
    handle = keystone.attach(load_agent("metaworld-mixed").policy, spec)
    assert (handle.k, handle.steps) == (spec.k, spec.steps)


def test_interrupted_anywhere_it_ends_with_the_same_result(toy_tune, tmp_path):
    config = toy_tune()
    whole = tmp_path / "whole"
    tuned = tune(config, whole)
    assert tuned.new == tuned.used
    rows = result(whole)

    for stop in (1, 23):
        folder, left = tmp_path / f"stopped {stop}", stop
        folder.mkdir()
        shutil.copy(whole / "latency.json", folder)  # a resumed run has it; another measurement could decide otherwise

        class Interrupted(InProcess):
            def __call__(self, settings, shards):
                nonlocal left
                for result in super().__call__(settings, shards):
                    left -= 1
                    if left < 0:
                        raise KeyboardInterrupt
                    yield result

        with pytest.raises(KeyboardInterrupt):
            tune(config, folder, Interrupted())
        before = len(keys(folder / "race")) + (len(keys(folder / "confirm")) if (folder / "confirm").exists() else 0)
        resumed = tune(config, folder)
        assert resumed.new == resumed.used - before
        assert result(folder) == rows
    again = tune(config, whole)
    assert (again.new, result(whole)) == (0, rows)
    more = tune(toy_tune(budget=260), whole)
    assert more.used > tuned.used
    assert more.new < more.used, "a larger budget uses what is stored"
    # … but confirms on states that no earlier confirmation used, and says so
    assert more.confirm_first >= max(more.race_states, tuned.confirm_first + tuned.confirm_states)
    assert "this is confirmation 2 in this folder (before: --budget 200)" in more.verdict.notes[-1]
    assert not any("this is confirmation" in note for note in tuned.verdict.notes)
    rows = result(whole)
    assert (tune(toy_tune(budget=260), whole).new, result(whole)) == (0, rows)
    for other, says in (
        ({"budget": 200}, r"--budget 200: .* holds a tuning run with 260 episodes"),
        (
            {"budget": 260, "space": ["first:temperature=1|0.5"]},
            r"with other settings \(--arm or --space\): give another --out",
        ),
        ({"budget": 260, "latency": LatencyLimit(9.0)}, r"other settings \(--latency\)"),
    ):
        with pytest.raises(KeystoneError, match=says):
            tune(toy_tune(**other), whole)
    assert result(whole) == rows


@pytest.mark.parametrize(
    ("other", "flag"),
    [
        ({"task": ["reach", "nan"]}, "--tasks"),
        ({"execute": 2}, "--execute"),
        ({"shard": 3}, "--shard"),
        ({"latency": LatencyLimit(9.0)}, "--latency"),
        ({"space": ["first:temperature=1|0.5"]}, "--arm or --space"),
    ],
)
def test_a_folder_of_another_run_is_refused_before_anything_is_written(toy_tune, tmp_path, other, flag):
    write_settings(tmp_path, toy_tune(), "abc")
    (tmp_path / "latency.json").write_text("of the first run")
    before = (tmp_path / "settings.json").read_bytes()
    check_folder(tmp_path, toy_tune(budget=999), "abc")
    with pytest.raises(KeystoneError, match=rf"holds a tuning run with other settings \({flag}\)"):
        check_folder(tmp_path, toy_tune(**other), "abc")
    with pytest.raises(KeystoneError, match="other settings"):
        tune(toy_tune(**other), tmp_path)
    with pytest.raises(KeystoneError, match=r"\(the files of --policy\)"):
        check_folder(tmp_path, toy_tune(), "def")
    assert (tmp_path / "settings.json").read_bytes() == before
    assert (tmp_path / "latency.json").read_text() == "of the first run"


def test_a_confirmation_has_no_states_of_its_race(toy_tune, tmp_path):
    config, arms = toy_tune(), [Spec.parse("first"), Spec.parse("first:steps=1")]
    assert fresh_states(tmp_path, config, arms, 10, 5) == (10, "")
    assert fresh_states(tmp_path, config, arms, 8, 5) == (10, ""), "resumed"
    first, note = fresh_states(tmp_path, config, arms, 12, 5)  # the race went further
    assert first == 15
    assert "this is confirmation 2 in this folder" in note
    assert fresh_states(tmp_path, config, arms, 12, 5) == (15, note), "resumed"
    first, note = fresh_states(tmp_path, toy_tune(task=["reach", "nan"]), arms, 8, 5)
    assert first == 20


def test_in_processes_that_stay_alive_it_is_the_same(toy_tune, tmp_path):
    config = toy_tune(space=["first:temperature=1|0.5"], budget=134)
    here = tune(config, tmp_path / "here")
    (tmp_path / "there").mkdir()
    shutil.copy(tmp_path / "here" / "latency.json", tmp_path / "there")
    there = tune(config, tmp_path / "there", LocalProcesses(1))
    assert there.used == here.used
    assert result(tmp_path / "there") == result(tmp_path / "here")


def test_errors_are_counted(toy_tune, tmp_path):
    found = tune(toy_tune("step-fails", space=["first:temperature=1|0.5"], budget=134), tmp_path / "run")
    assert sum(arm.errors for arm in found.arms) > 0
    assert not found.only_errors


def test_a_run_of_errors_ends_early_and_with_an_error(toy_tune, tmp_path, monkeypatch):
    from toy import PointEnv

    monkeypatch.setattr(PointEnv, "step", lambda self, action: 1 / 0)
    with pytest.raises(
        KeystoneError, match=r"every one of the \d+ episodes so far .* The last one: ZeroDivisionError: .*"
    ):
        tune(toy_tune(space=["first:temperature=1|0.5"], budget=134), tmp_path / "run")
    assert len(keys(tmp_path / "run" / "race")) < 134 / 2
    assert not (tmp_path / "run" / "tune.json").exists()


def test_an_environment_without_fresh_states_is_said(toy_tune, tmp_path, monkeypatch):
    from toy import PointEnv

    reset = PointEnv.reset
    monkeypatch.setattr(PointEnv, "reset", lambda self, *, seed=None, options=None: reset(self, seed=seed % 10))
    found = tune(toy_tune(space=["first:temperature=1|0.5"], budget=134), tmp_path / "run")
    assert "initial states of the confirmation were also in the race" in found.verdict.notes[-1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"budget": 199}, r"--budget 199: 6 arms on 1 tasks need 200 .* Give --budget 200, 2 arms or fewer"),
        ({"budget": 0}, r"--budget 0: 6 arms on 1 tasks need 200 episodes or more"),
        (
            {"space": WIDE_SPACE, "task": ["reach", "nan"], "budget": 250},
            r"--budget 250: \d+ arms on 2 tasks need \d+ .* \d+ arms or fewer",
        ),
        ({"space": ["first"]}, "nothing to try beside the policy as it is"),
    ],
)
def test_budgets_and_spaces_that_make_no_sense(toy_tune, tmp_path, given, says):
    with pytest.raises(KeystoneError, match=says):
        tune(toy_tune(**given), tmp_path / "run")
    assert not (tmp_path / "run" / "race").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--policy", "metaworld-mixt"], "there is no policy 'metaworld-mixt'"),
        (["--env", "metawurld"], "unknown environment 'metawurld'"),
        (["--tasks", "push-v4"], "metaworld has no task 'push-v4': did you mean 'push-v3'"),
        (["--tasks", "door-open-v3"], "was not trained on 'door-open-v3'"),
        (["--arm", "core-mean:k=4|auto"], "K would depend on the worker"),
        (["--arm", "first:seed=1|2"], "seed is the evaluation's"),
        (["--arm", "fist"], "did you mean 'first'"),
        (["--latency", "slow"], "--latency slow: expected a multiple"),
        (["--space", "wide", "--arm", "first:steps=2"], "--arm replaces the arms of --space wide"),
        (["--workers", "-1"], "--workers -1: expected 0 or more"),
        (["--episode-timeout", "0"], "--episode-timeout 0: expected seconds"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_made(tmp_path, capsys, flags, says):
    command = ["tune", "--policy", "metaworld-mixed", "--env", "metaworld", *flags, "--out", str(tmp_path / "run")]
    assert main(command) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_how_to_use_what_is_recommended_says_the_same_everywhere():
    spec = Spec.parse("core-mean:k=16,steps=2,temperature=0.8,execute=4")
    found = usage(spec)
    assert Spec.parse(found["spec"]) == Spec.from_mapping(found["vla_eval"]["args"]["keystone"]) == spec
    assert f"--policy.keystone.spec='{spec}'" in found["lerobot"]
    assert f"--spec '{spec}'" in found["serve"]
    name, _, value = found["environment"].partition("=")
    assert Spec.from_environment({name: value.strip("'")}) == spec
    assert "n_action_steps=4" in found["lerobot"]
    assert "chunk_size: 4" in found["notes"][0]


@pytest.mark.parametrize("execute", ["auto", "2..8"])
def test_how_to_use_an_adaptive_horizon(execute):
    found = usage(Spec.parse(f"core-mean:k=16,execute={execute}"))
    assert found["lerobot"].endswith("--policy.n_action_steps=8") == (execute == "2..8")
    (note,) = found["notes"]
    assert "KeyStone cuts LeRobot's queue" in note
    assert 'openpi and vla-eval must execute no more than `agreed_steps` under "keystone"' in note
    assert "chunk_size" not in note
