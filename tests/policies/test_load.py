"""Finding policies by name or folder."""

import json
from pathlib import Path

import pytest

from keystone.errors import KeystoneError
from keystone.policies import load, load_agent
from keystone.policies.flow_agent import FlowAgent
from keystone.policies.load import find_policy, shipped_policies, trained_on
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


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"tasks": 3}'])
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
    monkeypatch.setattr(load, "SHIPPED", tmp_path)
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


def test_shipped_policies_can_be_loaded():
    for name, folder in shipped_policies().items():
        assert Path(folder).is_dir()
        assert load_agent(name).tasks
