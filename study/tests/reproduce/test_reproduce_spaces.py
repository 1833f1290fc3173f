"""``keystone reproduce spaces`` on a toy benchmark."""

import json

import pytest

from keystone_robotics.cli import main
from keystone_robotics.policies.load import find_policy
from keystone_robotics.select import ActionSpace
from keystone_robotics.spec import Spec
from keystone_study.policies.flow import load_flow
from keystone_study.reproduce import spaces
from keystone_study.reproduce.workloads import WORKLOADS, Workload
from toy import save_random_flow


def test_each_arm_is_compared_with_itself_in_another_space(tmp_path, monkeypatch):
    policy = str(save_random_flow(tmp_path / "policy"))
    env = f"toy:Toy?folder={tmp_path}"
    toy = Workload("aloha-mixed", "Toy", policy, env, 4, 1, "", ("reach",))
    monkeypatch.setitem(WORKLOADS, "aloha-mixed", toy)
    monkeypatch.setattr(spaces, "SPACES", {env: ActionSpace(gripper={1: 0.0})})
    command = ["reproduce", "spaces", "--quick", "--workloads", "aloha-mixed", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    rows = json.loads((tmp_path / "out/quick/spaces-aloha-mixed.json").read_text())["workloads"]["aloha-mixed"]
    assert [row["arm"] for row in rows] == list(spaces.ARMS)
    stored = json.loads((tmp_path / "out/quick/runs/aloha-mixed/spaces/settings.json").read_text())["arms"]
    assert [Spec.parse(str(arm)).space for arm in stored[:3]] == [None] * 3
    assert "`core-mean:k=16,steps=2`" in (tmp_path / "out/quick/spaces-aloha-mixed.md").read_text()


@pytest.mark.parametrize("name", spaces.SPACE_WORKLOADS)
def test_spaces_fit_the_actions_of_their_policies(name):
    workload = WORKLOADS[name]
    config = load_flow(find_policy(workload.policy)).config
    layout = spaces.SPACES[workload.env].layout(config.horizon, config.action_dim)
    assert len(layout.plain) == (3 if workload.env == "ogbench" else 0)
    assert len(layout.rotations) + len(layout.grippers) + len(layout.plain) == config.action_dim
