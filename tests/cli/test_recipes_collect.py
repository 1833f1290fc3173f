"""`keystone recipes NAME --collect` runs a recipe's profile and arms, and writes one file that the table is made of."""

import json
from pathlib import Path

import pytest

from keystone_robotics.cli import main, recipes
from keystone_robotics.compare.comparison import rate_of
from keystone_robotics.compare.find import read
from keystone_robotics.errors import KeystoneError
from keystone_robotics.report.collect import read_collected, table_rows
from tiny import build
from tiny.checkpoint import env_features, save_checkpoint

VLA_EVAL = Path(__file__).parents[1] / "compare" / "data" / "vla_eval.json"


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("KEYSTONE_PROFILES", str(tmp_path / "profiles"))
    save_checkpoint(build("diffusion", **env_features("pusht")), tmp_path / "tiny", "pusht")
    return tmp_path / "tiny"


def test_a_recipe_is_collected_on_a_tiny_checkpoint(checkpoint, tmp_path, capsys):
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


def test_results_of_a_benchmark_that_ran_elsewhere_are_collected(checkpoint, tmp_path, capsys):
    out = tmp_path / "mine.json"
    words = ["groot-widowx", "--collect", str(out), "--policy", str(checkpoint), "--results", str(VLA_EVAL)]
    small = ["--k", "2", "--steps", "1", "--rounds", "2", "--device", "cpu"]
    assert main(["recipes", *words, *small]) == 0, capsys.readouterr().err
    found = read_collected(out)
    assert found["recipe"] == "groot-widowx"
    assert {(cost["k"], cost["steps"]) for cost in found["profile"]["costs"]} >= {(1, None), (2, None), (2, 1)}
    (wanted,) = read(VLA_EVAL)
    assert table_rows([found])[1][3].startswith(f"{100 * rate_of(wanted).rate:.1f} [")
    assert table_rows([found])[1][4] == "–"


@pytest.mark.parametrize("name", recipes.find())
def test_every_recipe_asks_for_somebodys_weights_alone(name, tmp_path, monkeypatch, capsys):
    """With a policy and an environment every recipe gets as far as loading them; none of these exists."""
    words = [
        "--collect",
        str(tmp_path / "x.json"),
        "--policy",
        str(tmp_path / "mine"),
        "--env",
        "pusht",
        "--device",
        "cpu",
    ]
    with pytest.raises(SystemExit, match="2"):
        main(["recipes", name, *words])
    printed = capsys.readouterr()
    assert f"keystone profile {tmp_path / 'mine'} " in printed.out
    assert str(tmp_path / "mine") in printed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["groot-widowx", "--collect", "x.json"],
            "the recipe groot-widowx has no `keystone profile`: --policy CHECKPOINT",
        ),
        (
            ["groot-widowx", "--collect", "x.json", "--policy", "p"],
            "give what it wrote, --results FOLDER …, or an --env",
        ),
        (["smolvla-libero", "--collect", "x"], "expected a file name that ends in .json"),
    ],
)
def test_what_cannot_be_collected_is_one_line(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
