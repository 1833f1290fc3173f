"""Finding policies by name or folder."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.policies import load_agent
from keystone_robotics.policies.fingerprint import checkpoint_fingerprint
from keystone_robotics.policies.load import check_names, find_policy, shipped_policies, trained_for, trained_on
from keystone_study.policies.flow import TYPE, FlowPolicy
from keystone_study.policies.flow_agent import FlowAgent
from toy import save_random_flow


def test_a_folder(tmp_path):
    folder = save_random_flow(tmp_path / "policy")
    (folder / "training.json").write_text(json.dumps({"tasks": ["reach-v3", "push-v3"]}))
    assert find_policy(str(folder)) == folder
    assert trained_on(str(folder)) == ("reach-v3", "push-v3")
    agent = load_agent(str(folder))
    assert isinstance(agent, FlowAgent)
    assert agent.tasks == ("reach-v3", "push-v3")


def test_a_folder_without_a_record_of_its_training(tmp_path):
    folder = save_random_flow(tmp_path / "policy")
    assert trained_on(str(folder)) == ()
    assert load_agent(str(folder)).tasks == ()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"tasks": 3}', '{"tasks": "push-v3"}', '{"tasks": [3]}'])
def test_a_record_that_cannot_be_read(tmp_path, content):
    folder = save_random_flow(tmp_path / "policy")
    (folder / "training.json").write_text(content)
    with pytest.raises(KeystoneError, match=r"training\.json cannot be read"):
        trained_on(str(folder))


@pytest.mark.parametrize("content", ["{", "[]", "3"])
def test_a_configuration_that_cannot_be_read(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(KeystoneError, match=r"config\.json cannot be read"):
        load_agent(str(tmp_path))


def test_shipped_policies_go_by_their_names(tmp_path, monkeypatch):
    save_random_flow(tmp_path / "metaworld-mix")
    (tmp_path / "no-policy").mkdir()
    monkeypatch.setattr("keystone_study.policies.SHIPPED", tmp_path)
    assert shipped_policies() == {"metaworld-mix": tmp_path / "metaworld-mix"}
    assert find_policy("metaworld-mix") == tmp_path / "metaworld-mix"
    with pytest.raises(KeystoneError, match="did you mean 'metaworld-mix'"):
        find_policy("metaworld-mux")


def test_what_is_not_there(tmp_path):
    with pytest.raises(KeystoneError, match=r"holds no config\.json"):
        find_policy(str(tmp_path))
    for name in ("nothing", "./some/folder", "/some/folder", "~/folder", "a/b/c"):
        with pytest.raises(KeystoneError, match="there is no policy"):
            find_policy(name)
    assert find_policy("lerobot/pi0") is None


def test_what_a_policy_was_trained_for(tmp_path):
    folder = save_random_flow(tmp_path / "policy")
    assert trained_for(str(folder)) is None
    (folder / "training.json").write_text(json.dumps({"tasks": ["reach-v3"]}))
    assert trained_for(str(folder)) is None
    (folder / "training.json").write_text(json.dumps({"tasks": ["reach-v3"], "benchmark": "metaworld"}))
    assert trained_for(str(folder)) == "metaworld"


def test_a_mistyped_folder_that_could_be_a_name_on_the_hub():
    with pytest.raises(KeystoneError, match="there is no folder runs/polcy, and as a name on the hub: ") as error:
        load_agent("runs/polcy")
    assert "runs/polcy cannot be read: " in str(error.value)  # the hub is out of reach here
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpu", "device 'gpu' cannot be used: "),
        ("cuda:x", "device 'cuda:x' cannot be used: "),
        ("xpu:99", "device 'xpu:99' cannot be used: "),
    ],
)
@pytest.mark.parametrize("kind", [TYPE, "diffusion"])
def test_a_device_that_is_none(tmp_path, kind, name, says):
    folder = save_random_flow(tmp_path / "policy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "type": kind}))
    with pytest.raises(KeystoneError, match=says) as error:
        load_agent(str(folder), name)
    assert "\n" not in str(error.value)


def test_a_flow_policy_is_moved_and_asked_on_its_device(tmp_path, monkeypatch):
    seen = []

    def forward(self, observation):
        seen.append(observation.device.type)
        return torch.zeros(len(observation), 6, 2)

    monkeypatch.setattr(FlowPolicy, "forward", forward)
    agent = load_agent(str(save_random_flow(tmp_path / "policy")), "meta")  # a device that every machine has
    assert {value.device.type for value in agent.policy.state_dict().values()} == {"meta"}
    observation = {"environment_state": np.zeros(3), "agent_pos": np.zeros(2)}
    assert isinstance(agent.plan([[observation]], ["reach"]), np.ndarray)
    assert seen == ["meta"]


def test_the_commit_of_a_hub_policy_is_part_of_its_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert checkpoint_fingerprint("somebody/policy") == "somebody/policy"
    folder = tmp_path / "models--somebody--policy"
    for commit in ("a" * 40, "b" * 40):
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "config.json").write_text("{}")
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
        assert checkpoint_fingerprint("somebody/policy") == f"somebody/policy@{commit}"


MINE = """
from keystone_robotics import factory
from keystone_robotics.policies import Agent, load_agent
def make(folder, device="unsaid") -> Agent:
    agent = load_agent(folder)
    agent.said = device
    return agent
def without(folder) -> 'Agent':
    return load_agent(folder)
@factory
def wrong():
    return 3
@factory
def fails():
    raise ValueError("no weights")
"""


def test_a_function_of_the_users_own(tmp_path, monkeypatch):
    folder = save_random_flow(tmp_path / "policy")
    (tmp_path / "my_policies.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"my_policies:make?folder={folder}"
    assert load_agent(name).said == "unsaid"
    assert load_agent(name, "cpu").said == "cpu"
    assert (find_policy(name), trained_on(name), checkpoint_fingerprint(name)) == (None, (), name)
    for name, device, says in (
        (f"my_policies:without?folder={folder}", "cpu", "unexpected keyword argument 'device'"),
        ("my_policies:make", None, "missing a required argument: 'folder'"),
        ("my_policies:wrong", None, "is 'int': expected keystone_robotics.policies.agent.Agent"),
        ("my_policies:fails", None, "failed: ValueError: no weights"),
        ("my_policies:mkae", None, "has no 'mkae': did you mean 'make'"),
        ("my_polices:make", None, "my_polices cannot be imported: ModuleNotFoundError"),
    ):
        with pytest.raises(KeystoneError, match=says):
            load_agent(name, device)


def test_shipped_policies_can_be_loaded():
    for name, folder in shipped_policies().items():
        assert Path(folder).is_dir()
        assert load_agent(name).tasks


def test_the_fingerprint_covers_subfolders(tmp_path):
    """Backbones and tokenizers are saved in folders beside the weights."""
    folder = save_random_flow(tmp_path / "policy")
    seen = {checkpoint_fingerprint(str(folder))}
    (folder / "backbone").mkdir()
    for name, content in (("a.json", "{}"), ("a.json", "[]"), ("b.json", "[]")):
        (folder / "backbone" / name).write_text(content)
        seen.add(checkpoint_fingerprint(str(folder)))
    assert len(seen) == 4


def test_the_name_of_a_policy_alone_is_checked_without_gymnasium(monkeypatch):
    """As `keystone serve` does in openpi's own environment."""
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for name in [name for name in sys.modules if name.startswith("keystone_robotics.environments")]:
        monkeypatch.delitem(sys.modules, name)
    check_names("my.module:policy")
    with pytest.raises(ModuleNotFoundError, match="gymnasium"):
        check_names("my.module:policy", "metaworld")
