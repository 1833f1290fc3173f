"""The command `keystone train`, as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from keystone_robotics.cli import main
from keystone_robotics.policies import load_agent
from keystone_study.train import run as training
from keystone_study.train.config import TrainingConfig

SMALL = ["--tasks", "reach-v3", "--regime", "clean", "--demonstrations", "2", "--iterations", "6"]


def train(out: Path, *words: str) -> int:
    return main(["train", "--out", str(out), *SMALL, *words])


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demos")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, demos: Path) -> Path:
    out = tmp_path_factory.mktemp("trained") / "reach"
    assert train(out, "--demos", str(demos)) == 0
    return out


def test_the_folder_holds_a_policy_and_how_it_was_made(trained: Path, demos: Path):
    agent = load_agent(str(trained))
    assert agent.tasks == ("reach-v3",)
    record = json.loads((trained / "training.json").read_text())
    assert record["benchmark"] == "metaworld"
    assert record["tasks"] == ["reach-v3"]
    assert (record["regime"], record["demonstrations"], record["iterations"], record["seed"]) == ("clean", 2, 6, 0)
    assert record["command"] == (
        "keystone train --env metaworld --tasks reach-v3 --regime clean --demonstrations 2 --policy flow "
        f"--iterations 6 --seed 0 --demos {demos.name} --out reach"
    )
    assert {"keystone", "python", "torch", "numpy", "metaworld", "mujoco"} <= set(record["versions"])
    assert 0 < record["expert_success"]["reach-v3"] <= 1
    assert record["loss"] > 0
    assert str(trained.parent) not in (trained / "training.json").read_text()
    assert (demos / "metaworld" / "reach-v3-clean-seed0.npz").is_file()
    assert not (trained / "work" / "demos").exists()


def test_the_recorded_command_makes_the_same_weights(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    command = json.loads((trained / "training.json").read_text())["command"].split()
    assert main(command[1:]) == 0
    for name in ("model.safetensors", "config.json", "training.json"):
        assert (tmp_path / "reach" / name).read_bytes() == (trained / name).read_bytes()


def test_relative_folders_are_recorded_as_they_were_given():
    config = TrainingConfig("pusht", ("pusht",), "mixed", 2, "flow", 6, 0)
    command = config.command(Path("out/policies/my pusht"), Path("../demos"))
    assert command.endswith("--seed 0 --demos ../demos --out 'out/policies/my pusht'")


def test_the_same_command_again_says_that_it_is_finished(trained: Path, capsys: pytest.CaptureFixture[str]):
    before = (trained / "model.safetensors").stat().st_mtime_ns
    assert train(trained) == 0
    assert "already finished" in capsys.readouterr().out
    assert (trained / "model.safetensors").stat().st_mtime_ns == before


def test_another_command_on_the_same_folder_is_refused(trained: Path, capsys: pytest.CaptureFixture[str]):
    assert train(trained, "--seed", "3", "--policy", "diffusion") == 2
    message = capsys.readouterr().err
    assert "seed (0 there, 3 here)" in message
    assert "policy (flow there, diffusion here)" in message
    assert "regime" not in message


@pytest.mark.usefixtures("trained")  # by which the demonstrations were made
def test_diffusion_learns_from_the_same_demonstrations(tmp_path: Path, demos: Path, monkeypatch: pytest.MonkeyPatch):
    from keystone_study.train.experts import MetaWorldExpert

    monkeypatch.setattr(MetaWorldExpert, "demonstrate", lambda *_: pytest.fail("the demonstrations are there"))
    assert train(tmp_path / "one", "--demos", str(demos), "--policy", "diffusion") == 0
    record = json.loads((tmp_path / "one" / "training.json").read_text())
    assert {"lerobot", "diffusers"} <= set(record["versions"])
    assert record["parameters"] < 1_500_000
    files = {path.name for path in (tmp_path / "one").iterdir()}
    assert {"config.json", "model.safetensors", "policy_preprocessor.json", "policy_postprocessor.json"} <= files


def test_ctrl_c_leaves_work_that_the_same_command_goes_on_with(
    tmp_path: Path, trained: Path, demos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "reach"
    with monkeypatch.context() as patch:
        patch.setattr(training, "optimise", interrupt)
        with pytest.raises(SystemExit) as exit:
            train(out, "--demos", str(demos))
    assert exit.value.code == 130
    assert "same command again" in capsys.readouterr().out
    assert not (out / "training.json").exists()
    assert train(out, "--demos", str(demos), "--seed", "5") == 2  # begun, so it is this training's folder
    assert train(out, "--demos", str(demos)) == 0
    assert (out / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--env", "metawurld"], "did you mean 'metaworld'"),
        (["--tasks", "reach-v2"], "did you mean 'reach-v3'"),
        (["--tasks", "reach-v3", "reach-v3"], "each once"),
        (["--regime", "mixd"], "did you mean 'mixed'"),
        (["--policy", "flo"], "did you mean 'flow'"),
        (["--demonstrations", "0"], "--demonstrations 0"),
        (["--iterations", "0"], "--iterations 0"),
        (["--seed", "-1"], "--seed -1"),
    ],
)
def test_misspelt_arguments_are_explained(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert train(tmp_path / "one", *words) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "one").exists()


def test_a_file_a_foreign_policy_and_a_full_disk_are_refused(
    tmp_path: Path, demos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("x")
    assert train(tmp_path / "file") == 2
    assert "is a file" in capsys.readouterr().err
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text("{}")
    assert train(tmp_path / "theirs") == 2
    assert "did not make" in capsys.readouterr().err

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training, "optimise", full)
    assert train(tmp_path / "full", "--demos", str(demos)) == 2
    assert "No space left on device" in capsys.readouterr().err


def test_importing_training_imports_no_robot_framework():
    code = (
        "import sys, keystone_study.train, keystone_study.train.run, keystone_study.train.experts, keystone_study.cli.train\n"
        "heavy = {'lerobot', 'metaworld', 'mujoco', 'gym_pusht', 'diffusers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
