"""``kill -9`` at random moments: the same command goes on, and ends with the table of a run that nobody disturbed."""

import contextlib
import json
import random
import re
import sqlite3
import subprocess

import pytest
from kill9 import KEYSTONE, Kills, disturb

from keystone_robotics.compare.summary import summarise, write_summary
from keystone_robotics.evaluate.config import config_from, read_yaml
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.records import FILE
from toy import table

EPISODES = 24


@pytest.fixture(scope="module")
def config(metaworld_policy, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "eval.yaml"
    path.write_text(
        f"policy: {metaworld_policy}\nenv: metaworld\ntasks: [reach-v3, push-v3]\narms: [first, 'keystone:k=8']\n"
        "episodes: 6\nshard: 2\nmax_steps: 40\nexecute: 2\nkeep_rounds: true\n"
    )
    return path


@pytest.fixture(scope="module")
def undisturbed(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    evaluation = evaluate(config_from(read_yaml(config)), folder)
    write_summary(folder, summarise(evaluation.episodes, evaluation.arms))
    return folder


def summary(folder):
    return [{**one, "latency_ms": None} for one in json.loads((folder / "summary.json").read_text())]


def kept_rounds(folder):
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        return database.execute("SELECT * FROM rounds ORDER BY arm, task, repeat, episode, round").fetchall()


def test_killed_again_and_again(config, undisturbed, tmp_path):
    command = [KEYSTONE, "eval", config, "--out", tmp_path / "run", "--workers", "2"]
    moments, kills = random.Random(7), Kills()
    while kills.total < 2 and not kills.runs:
        disturb(command, tmp_path / "run", moments, kills, most=2)
    assert kills.total, "it was done before it could be killed"
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "keystone:k=8" in result.stdout
    assert re.search(r"24 episodes,\s+[1-9]\d*\s+already\s+stored", result.stdout), "it began anew"
    assert len(table(tmp_path / "run")) == EPISODES
    assert table(tmp_path / "run") == table(undisturbed)
    assert kept_rounds(tmp_path / "run") == kept_rounds(undisturbed)
    assert summary(tmp_path / "run") == summary(undisturbed)
