"""`keystone check` on real checkpoints."""

import runpy
import sys

import pytest

from keystone_robotics.cli import main
from tiny import build
from tiny.checkpoint import env_features, save_checkpoint


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in ("diffusion", "act"):
        save_checkpoint(build(name, **env_features("pusht")), folder / name, "pusht")
    return folder


def test_reports_what_was_proven(checkpoints, capsys):
    assert main(["check", str(checkpoints / "diffusion"), "-k", "4"]) == 0
    printed = capsys.readouterr().out
    assert "adapter diffusion" in printed
    assert "K = 4: equal to 4 single calls" in printed
    assert "bit-identical" in printed


def test_a_range_is_checked_at_its_most_candidates(checkpoints, capsys):
    assert main(["check", str(checkpoints / "diffusion"), "-k", "2..4"]) == 0, capsys.readouterr()
    assert "K = 4, the most of 2..4: equal to 4 single calls" in capsys.readouterr().out


def test_a_deterministic_policy_is_refused_with_the_reason(checkpoints, capsys):
    assert main(["check", str(checkpoints / "act")]) == 2
    assert "deterministic" in capsys.readouterr().err


def test_what_is_not_a_checkpoint_gets_a_clear_error(tmp_path, capsys):
    assert main(["check", str(tmp_path / "nowhere")]) == 2
    assert "expected a folder, a LeRobot name on the hub" in capsys.readouterr().err
    assert main(["check", str(tmp_path)]) == 2
    assert "holds no config.json" in capsys.readouterr().err


def test_the_command_of_this_python(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["keystone", "check", "nowhere/at/all"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("keystone_robotics", run_name="__main__")
    assert end.value.code == 2
    assert "nowhere/at/all" in capsys.readouterr().err


def test_a_policy_saved_without_its_processors(tmp_path, capsys):
    build("diffusion", **env_features("pusht")).save_pretrained(tmp_path)
    assert main(["check", str(tmp_path)]) == 2
    assert "holds no policy_preprocessor.json" in capsys.readouterr().err


def test_a_misspelt_name_is_not_blamed_on_the_connection(capsys):
    assert main(["check", "metaworld-mixed-difusion"]) == 2
    assert "'metaworld-mixed-diffusion'" in capsys.readouterr().err
    assert main(["check", "some.module:policy"]) == 2
    assert "some.module cannot be imported" in capsys.readouterr().err


def test_policies_that_come_along_are_known_by_name(capsys):
    assert main(["check", "metaworld-mixed", "--k", "4", "--steps", "2"]) == 0
    printed = capsys.readouterr().out
    assert "adapter encode/sample" in printed
    assert "K = 4: equal to 4 single calls" in printed
    assert "bit-identical" in printed
    assert main(["check", "metaworld-mixed-diffusion", "--k", "2"]) == 0
    assert "candidate 0 of 2" in capsys.readouterr().out
