"""`keystone recipes NAME --collect` runs a recipe's profile and arms, and writes one file that the table is made of."""

import json

import pytest

from keystone_robotics.cli import main
from keystone_robotics.errors import KeystoneError
from keystone_robotics.report.collect import read_collected, table_rows
from tiny import build
from tiny.checkpoint import env_features, save_checkpoint


def test_a_recipe_is_collected_on_a_tiny_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KEYSTONE_PROFILES", str(tmp_path / "profiles"))
    checkpoint = tmp_path / "tiny"
    save_checkpoint(build("diffusion", **env_features("pusht")), checkpoint, "pusht")
    out = tmp_path / "mine.json"
    small = ["--episodes", "1", "--repeats", "1", "--k", "4", "--steps", "1", "--rounds", "2", "--workers", "0"]
    arms = ["--arm", "first", "--arm", "medoid:k=4,steps=2"]
    env = "lerobot:pusht?episode_length=4"
    words = ["smolvla-libero", "--collect", str(out), "--policy", str(checkpoint), "--env", env, "--device", "cpu"]
    assert main(["recipes", *words, *small, *arms]) == 0, capsys.readouterr().err
    found = read_collected(out)
    assert (found["recipe"], found["settings"]["env"]) == ("smolvla-libero", env)
    assert {"torch", "lerobot"} <= set(found["versions"])
    assert {(cost["k"], cost["steps"]) for cost in found["profile"]["costs"]} >= {(1, None), (4, None), (1, 1), (4, 1)}
    heading, first, second = table_rows([found])
    assert [first[2], second[2]] == ["`first`", "`medoid:k=4,steps=2`"]
    assert len(heading) == len(first)
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps({**found, "arms": [{"arm": "first"}]}))
    with pytest.raises(KeystoneError, match="is no file of"):
        read_collected(damaged)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["groot-widowx", "--collect", "x.json"], "the recipe groot-widowx has no `keystone profile` command"),
        (["smolvla-libero", "--collect", "x"], "expected a file name that ends in .json"),
    ],
)
def test_what_cannot_be_collected_is_one_line(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
