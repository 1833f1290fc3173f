"""``keystone reproduce selectors`` on a toy benchmark: scorers are trained, evaluated and timed, once."""

import json

import numpy as np
import pytest
from rich.console import Console

from keystone_robotics.cli import main
from keystone_robotics.evaluate.executors import make_executor
from keystone_robotics.policies.load import RECORD
from keystone_robotics.spec import Spec
from keystone_study.reproduce import selectors
from keystone_study.reproduce.selectors import failed_rollouts
from keystone_study.reproduce.selectors_run import FREE_TITLE, SelectorRow
from keystone_study.reproduce.workloads import MAIN_SEED, WORKLOADS, Workload
from keystone_study.train.demonstration import Demonstration
from toy import initial_position, save_random_flow, table, toy_settings


class ToyExpert:
    """Walks straight to the origin."""

    motion, packages = (0, 1), ()

    def describe(self, regime):
        return regime

    def demonstrate(self, task, regime, seed, index):
        position = initial_position(10**6 + index)
        actions = np.tile(-position, (8, 1)).astype(np.float32)
        states = np.stack([np.append(position * (1 - 0.2 * step), step / 10) for step in range(8)]).astype(np.float32)
        return Demonstration(states[:, :2], states, actions, True)


@pytest.fixture
def toy_workload(tmp_path, monkeypatch):
    policy = save_random_flow(tmp_path / "policy", horizon=6, n_action_steps=3, relative=(0,))
    record = {
        "benchmark": "toy",
        "tasks": ["reach"],
        "regime": "clean",
        "demonstrations": 4,
        "iterations": 30,
        "seed": 0,
    }
    (policy / RECORD).write_text(json.dumps(record))
    toy = Workload("pusht", "Toy", str(policy), f"toy:Toy?folder={tmp_path}", 4, 1, "", ("reach",), reported_on=4)
    monkeypatch.setitem(WORKLOADS, "pusht", toy)
    monkeypatch.setattr(selectors, "find_expert", lambda name: ToyExpert())


def test_scorers_are_trained_and_every_arm_is_compared(toy_workload, tmp_path):
    command = ["reproduce", "selectors", "--quick", "--workloads", "pusht", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    out = tmp_path / "out/quick"
    found = json.loads((out / "selectors-pusht.json").read_text())
    rows = {row["title"]: SelectorRow.from_dict(row) for row in found["workloads"]["pusht"]}
    assert FREE_TITLE not in rows  # the main study has no result here
    first, taco, value = rows["K = 1"], rows["TACO"], rows["value (V-GPS)"]
    assert (first.to_first, first.training, first.time.round) == (None, None, 1.0)
    assert taco.to_first is not None
    assert taco.training.failures == 0
    assert value.training.failures > 0
    assert value.training.examples > taco.training.examples
    assert taco.arm == "scored?k=16&steps=2"  # no folder of this machine
    for title in ("temporal ensemble (ACT)", "adaptive ensemble (CogACT)"):
        row = rows[title]
        assert row.time.step == pytest.approx(3 * row.time.round)  # a round in every step, not in every third
        assert row.rounds > first.rounds
    folder = out / "runs/pusht/selectors"
    assert json.loads((folder / "reported/own/settings.json").read_text())["seed"] == MAIN_SEED
    assert "ensemble (CogACT)" in (out / "selectors-pusht.md").read_text()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/scorer.safetensors")}
    assert len(before) == 2
    episodes = table(folder / "reported/taco")
    assert main(command) == 0  # nothing is trained, rolled out or timed again
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert table(folder / "reported/taco") == episodes
    again = json.loads((out / "selectors-pusht.json").read_text())
    assert again.pop("cpu_hours") > found.pop("cpu_hours")
    assert again == found


def test_failed_rollouts_have_the_states_that_their_actions_led_to(tmp_path):
    policy = save_random_flow(tmp_path / "policy")
    settings = toy_settings(policy, tmp_path, arms=("first",), keep_rounds=True, episodes=6)
    failed, count = failed_rollouts(settings, tmp_path / "run", make_executor(1, None), Console(quiet=True))
    records = [one for one in table(tmp_path / "run") if not one.success]
    assert count == 6
    assert len(failed) == len(records) > 0
    assert settings.arms == (Spec.parse("first"),)
    for one, record in zip(failed, records, strict=True):
        assert not one.success
        assert len(one.actions) == record.steps
        np.testing.assert_allclose(one.agent_pos[0], initial_position(record.initial_seed), rtol=1e-6)
        moved = np.diff(one.agent_pos, axis=0)
        np.testing.assert_allclose(moved, 0.2 * one.actions[:-1], atol=1e-6)
        np.testing.assert_allclose(one.environment_state[:, :2], one.agent_pos)
