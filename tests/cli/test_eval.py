"""`keystone eval`, run as a user runs it."""

import contextlib
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from keystone_robotics.cli import main
from keystone_robotics.cli.evaluate import run
from keystone_robotics.environments import BENCHMARKS
from keystone_robotics.evaluate.config import DEFAULT_ARMS
from keystone_robotics.evaluate.executors import make_executor
from keystone_robotics.records import FILE
from keystone_robotics.sample.families.encode_sample import EncodeSampleAdapter
from toy import save_random_flow, table

KEYSTONE = Path(sys.executable).with_name("keystone")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = save_random_flow(tmp_path_factory.mktemp("policies") / "metaworld", 89, 4)
    (folder / "training.json").write_text(json.dumps({"tasks": ["reach-v3", "push-v3"]}))
    return folder


@pytest.fixture
def config(policy, tmp_path):
    path = tmp_path / "eval.yaml"
    path.write_text(
        f"policy: {policy}\nenv: metaworld\ntasks: [reach-v3]\nepisodes: 3\nmax_steps: 6\n"
        "arms:\n- first\n- {rule: keystone, k: 4}\n"
    )
    return path


def stored(folder):
    """Episodes so far, also while the store is being made."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True)) as database:
            return database.execute("SELECT COUNT(*) FROM episodes").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def eval_(*args):
    return main(["eval", *map(str, args)])


def test_a_variable_that_is_not_read_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KEYSTONE_RERUN", "rounds.rrd")
    policy = save_random_flow(tmp_path / "policy")
    flags = ["--policy", policy, "--env", f"toy:Toy?folder={tmp_path}", "--tasks", "nothing", "--arm", "first"]
    assert eval_(*flags, "--out", tmp_path / "run") == 2
    assert " ".join(capsys.readouterr().out.split()).count("KEYSTONE_RERUN is not read by `keystone eval`") == 1


def test_a_file_in_a_process_of_its_own(config, tmp_path):
    command = [KEYSTONE, "eval", config, "--out", tmp_path / "run"]
    wide = {**os.environ, "COLUMNS": "100"}
    result = subprocess.run(command, env=wide, capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "keystone:k=4" in result.stdout
    assert "6 episodes rolled out" in result.stdout
    assert len(table(tmp_path / "run")) == 6
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [one["arm"] for one in summary] == ["first", "keystone:k=4"]
    assert [one["episodes"] for one in summary] == [3, 3]
    assert (tmp_path / "run" / "summary.md").read_text().startswith("| arm | n | success, %")
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["arms"] == ["first", "keystone:k=4"]
    assert {"keystone", "torch", "mujoco", "metaworld"} <= settings["versions"].keys()


def test_flags_say_what_the_file_says(config, policy, tmp_path, capsys):
    assert eval_(config, "--out", tmp_path / "file") == 0
    flags = [
        "--policy", policy, "--env", "metaworld", "--tasks", "reach-v3", "--episodes", "3", "--max-steps", "6",
        "--arm", "first", "--arm", "keystone:k=4", "--out", tmp_path / "flags",
    ]  # fmt: skip
    assert eval_(*flags) == 0
    assert table(tmp_path / "file") == table(tmp_path / "flags")
    capsys.readouterr()
    assert eval_(*flags) == 0
    assert "0 episodes rolled out" in capsys.readouterr().out


def test_flags_go_before_the_file(config, tmp_path):
    flags = ["--episodes", "2", "--arm", "medoid:k=3", "--keep-rounds", "--tasks", "push-v3", "--repeats", "2"]
    assert eval_(config, *flags, "--out", tmp_path / "run") == 0
    rows = table(tmp_path / "run")
    assert {(row.arm, row.task, row.repeat, row.episode) for row in rows} == {
        ("medoid:k=3", "push-v3", repeat, episode) for repeat in range(2) for episode in range(2)
    }
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert (settings["max_steps"], settings["keep_rounds"]) == (6, True)


def test_without_tasks_it_does_what_the_policy_was_trained_on(policy, tmp_path):
    flags = ["--policy", policy, "--env", "metaworld", "--episodes", "1", "--max-steps", "3", "--arm", "first"]
    assert eval_(*flags, "--out", tmp_path / "run") == 0
    assert [row.task for row in table(tmp_path / "run")] == ["push-v3", "reach-v3"]


def test_tasks_that_it_was_not_trained_on_if_asked_for(config, tmp_path):
    options = ["--tasks", "door-open-v3", "--allow-untrained-tasks", "--episodes", "1"]
    assert eval_(config, *options, "--out", tmp_path / "run") == 0
    assert {row.task for row in table(tmp_path / "run")} == {"door-open-v3"}


def test_a_policy_for_another_benchmark_is_said_to_be_one(tmp_path, capsys):
    assert eval_("--policy", "metaworld-mixed", "--env", "pusht", "--out", tmp_path / "run") == 2
    assert "policy 'metaworld-mixed' was trained for metaworld" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "kind", "workers"),
    [
        ((None, None, None), "LocalProcesses", 1),
        ((0, None, None), "InProcess", None),
        ((3, None, None), "LocalProcesses", 3),
        ((None, "auto", None), "RayCluster", None),
        ((1, "auto", 0.5), "RayCluster", 1),
    ],
)
def test_how_many_workers_where(given, kind, workers):
    executor = make_executor(*given)
    assert (type(executor).__name__, getattr(executor, "workers", None)) == (kind, workers)


@pytest.mark.parametrize(
    ("package", "extra"), [("metaworld", "eval"), ("PIL.Image", "plot"), ("matplotlib", "plot"), ("ray", "ray")]
)
def test_a_missing_package_is_said(config, tmp_path, monkeypatch, capsys, package, extra):
    def missing(*_):
        raise ModuleNotFoundError(f"No module named {package}", name=package)

    monkeypatch.setattr("keystone_robotics.evaluate.executors.make_executor", missing)
    assert eval_(config, "--out", tmp_path / "run") == 2
    top = package.partition(".")[0]
    assert capsys.readouterr().err == f'keystone: this needs {top}: pip install "keystone-robotics[{extra}]"\n'


def test_what_the_table_needs_is_missed_before_anything_is_rolled_out(config, tmp_path):
    code = f"""
        import sys
        import keystone_robotics.cli
        sys.modules["scipy"] = None
        sys.exit(keystone_robotics.cli.main(["eval", {str(config)!r}, "--out", {str(tmp_path / "run")!r}]))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == 'keystone: this needs scipy: pip install "keystone-robotics[eval]"\n'
    assert not (tmp_path / "run").exists()


def test_the_benchmark_and_the_policy_of_the_guide(tmp_path, monkeypatch):
    """The file and the command of docs/evaluate.md, as they stand there; also with workers."""
    guide = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text()
    (code,) = re.findall(r"```python\n# mine\.py\n(.*?)```", guide, re.DOTALL)
    (command,) = re.findall(r"^    keystone (eval --env mine:.*)$", guide, re.MULTILINE)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        for number, flags in enumerate(([], ["--workers", "2"])):
            assert main([*shlex.split(command), "--out", f"run{number}", *flags]) == 0
    finally:
        sys.modules.pop("mine", None)
    rows = table(tmp_path / "run0")
    assert len(rows) == 40
    assert not any(row.error for row in rows)
    assert rows == table(tmp_path / "run1")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tasks", "reach-v4"], "metaworld has no task 'reach-v4': did you mean 'reach-v3'"),
        (["--tasks", "door-open-v3"], "was not trained on 'door-open-v3'"),
        (["--arm", "mediod:k=4"], "did you mean 'medoid'"),
        (["--arm", "keystone:tua=1"], "did you mean 'tau'"),
        (["--arm", "first", "--arm", "first:k=1"], "arm 'first' was given twice"),
        (["--arm", "first:execute=99"], "execute=99: this policy plans 6 steps"),
        (["--policy", "no-such-policy"], "there is no policy 'no-such-policy'"),
        (["--env", "metawurld"], "unknown environment 'metawurld': did you mean 'metaworld'"),
        (["--env", "pusht", "--tasks", "reach-v3"], "has no task 'reach-v3'"),
        (["--episodes", "0"], "episodes=0"),
        (["--workers", "-1"], "--workers -1: expected 0 or more"),
        (["--workers", "0", "--ray", "auto"], "--workers 0: expected 1 or more"),
        (["--workers", "0", "--episode-timeout", "9"], "--episode-timeout needs a worker process"),
        (["--episode-timeout", "0"], "--episode-timeout 0: expected seconds, more than 0"),
        (["--gpus", "0.5"], "--gpus 0.5 is for workers on Ray: add --ray"),
        (["--device", "gpu"], "device 'gpu' cannot be used: "),
        (["--device", "gpu", "--workers", "2"], "device 'gpu' cannot be used: "),
        (["--policy", "metaworld-mixed", "--env", "pusht", "--tasks", "push-v3"], "was trained for metaworld"),
        (
            ["--policy", "pusht-mixed", "--tasks", "push-v3"],
            "was trained for pusht, not for metaworld: --env pusht",
        ),
        (["--env", "no_such_module:Thing"], "no_such_module cannot be imported"),
        (
            ["--env", "keystone_robotics.environments:BENCHMARKS"],
            "is 'dict': expected keystone_robotics.environments.benchmark.Benchmark",
        ),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_made(config, tmp_path, capsys, flags, says):
    assert eval_(config, *flags, "--out", tmp_path / "run") == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.startswith("keystone: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not (tmp_path / "run").exists()


def test_what_is_missing_is_said(tmp_path, capsys):
    assert eval_("--out", tmp_path / "run") == 2
    assert "no policy was given: expected a name (--policy NAME)" in capsys.readouterr().err
    assert eval_(tmp_path / "no.yaml") == 2
    assert "there is no file" in capsys.readouterr().err


def test_a_damaged_store_is_one_line(config, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).write_bytes(b"nothing of ours" * 100)
    assert eval_(config, "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert "is damaged or not a KeyStone database" in error
    assert error.count("\n") == 1


def test_ctrl_c_says_how_to_go_on(config, tmp_path):
    """As a terminal sends it: to the command and to its workers."""
    flags = ["--episodes", "400", "--shard", "2", "--max-steps", "60", "--workers", "2", "--out", tmp_path / "run"]
    command = [KEYSTONE, "eval", config, *flags]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    ) as process:
        until = time.monotonic() + 300
        while time.monotonic() < until and not stored(tmp_path / "run"):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=200)
    assert process.returncode == 2
    assert f"interrupted; finished shards are stored in {tmp_path / 'run'}: run the same command again" in error
    assert "Traceback" not in error
    assert table(tmp_path / "run")


@pytest.fixture
def toy_run(tmp_path):
    """Runs the toy benchmark; returns the exit code."""
    policy = save_random_flow(tmp_path / "policy")

    def run(tasks, workers=0):
        flags = [] if workers is None else ["--workers", workers]
        where = [
            "--policy",
            policy,
            "--env",
            f"toy:Toy?folder={tmp_path}",
            "--tasks",
            *tasks,
            "--out",
            tmp_path / "run",
        ]
        try:
            return eval_(*where, "--arm", "first", "--episodes", "4", *flags)
        except SystemExit as end:
            return end.code

    return run


def test_some_errors_are_counted(toy_run, capsys):
    assert toy_run(["step-fails"]) == 0
    printed = capsys.readouterr()
    assert "1 of 4 episodes ended with an error; they count as failures" in printed.out
    assert toy_run(["reach"]) == 0
    assert "ended with an error" not in capsys.readouterr().out


def test_a_run_in_which_nothing_was_measured_ends_with_one(toy_run, capsys, tmp_path):
    """Also when it is called again, and only because of arms that have nothing else."""
    for _ in range(2):
        assert toy_run(["cannot-be-made"]) == 1
        printed = capsys.readouterr()
        assert "4 of 4 episodes ended with an error" in printed.out
        assert printed.err.endswith("keystone: every episode of first ended with an error\n")
    assert len(table(tmp_path / "run")) == 4
    assert toy_run(["cannot-be-made", "reach"]) == 0
    assert "4 of 8 episodes ended with an error" in capsys.readouterr().out


def test_an_environment_that_aborts_does_not_end_the_command(toy_run, capsys, tmp_path):
    assert toy_run(["aborts"], workers=None) == 0
    assert "1 of 4 episodes ended with an error" in capsys.readouterr().out
    assert [row.episode for row in table(tmp_path / "run") if row.error] == [1]


def test_default_arms_for_a_policy_whose_steps_are_fixed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(EncodeSampleAdapter, "refuse_steps", lambda self, policy, steps: "this policy has no loop")
    policy, env = save_random_flow(tmp_path / "policy"), f"toy:Toy?folder={tmp_path}"
    flags = [
        "--policy",
        policy,
        "--env",
        env,
        "--tasks",
        "reach",
        "--episodes",
        "2",
        "--workers",
        "0",
        "--max-steps",
        "3",
    ]
    assert eval_(*flags, "--out", tmp_path / "run") == 0
    assert "default arms are rolled out without steps=: " in capsys.readouterr().out
    arms = {row.arm for row in table(tmp_path / "run")}
    assert arms == {"first", "first:temperature=0.6", "keystone:k=16", "core-mean:k=16"}
    assert eval_(*flags, "--out", tmp_path / "given", "--arm", "first", "--arm", "first:steps=2") == 2


def test_the_help_names_the_default_arms_and_every_environment():
    assert [name for name in (*map(str, DEFAULT_ARMS), *BENCHMARKS) if name not in run.__doc__] == []


def test_less_asked_for_is_less_summed_up(config, tmp_path):
    """The store keeps what earlier calls asked for; the table is about what is asked for now, with all arms of the run."""
    assert main(["eval", str(config), "--out", str(tmp_path / "run")]) == 0
    before = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert main(["eval", str(config), "--out", str(tmp_path / "run"), "--episodes", "1", "--arm", "medoid:k=2"]) == 0
    after = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [one["arm"] for one in after] == [*(one["arm"] for one in before), "medoid:k=2"]
    assert before[0]["episodes"] > after[0]["episodes"]
    assert after[-1]["difference"] is not None  # to the first arm of the run, not of this call
