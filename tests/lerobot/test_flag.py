"""The flag's field on LeRobot's configs, and what it does to policies, within this process."""

import copy
import dataclasses
import importlib
import json
import sys
import typing

import lerobot_policy_keystone
import pytest
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.configs.default import DatasetConfig
from lerobot.configs.train import TrainPipelineConfig
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot_policy_keystone import KeystoneConfig, KeystoneOptions, flag

import keystone_robotics as keystone
from keystone_robotics.errors import KeystoneError
from keystone_robotics.spec import options
from tiny import POLICIES, build


@pytest.fixture(autouse=True)
def no_options_from_outside(monkeypatch):
    for name in ("LOG", *(name.upper() for name in options())):
        monkeypatch.delenv(f"KEYSTONE_{name}", raising=False)


@pytest.fixture
def load(checkpoint):
    """`load("--keystone.k=4")`: the tiny Diffusion Policy as LeRobot's commands load it."""

    def load(*overrides, name="diffusion"):
        config = PreTrainedConfig.from_pretrained(checkpoint(name), cli_overrides=list(overrides))
        return get_policy_class(name).from_pretrained(checkpoint(name), config=config)

    return load


def test_plugin_fits():
    assert lerobot_policy_keystone.problem == ""


def test_every_policy_type_has_the_field():
    for name, config_class in PreTrainedConfig.get_known_choices().items():
        has = "keystone" in {field.name for field in dataclasses.fields(config_class)}
        assert has == (name != "keystone"), name


def test_every_option_and_every_parameter_of_a_rule_has_a_flag():
    flags = {field.name for field in dataclasses.fields(KeystoneOptions)}
    assert {one.name for one in dataclasses.fields(keystone.Spec)} | {"spec"} <= flags
    for rule in keystone.RULES.values():
        hints = typing.get_type_hints(rule)
        for parameter in dataclasses.fields(rule):
            assert (parameter.name in flags) == (hints[parameter.name] is not typing.Any), parameter.name


def test_what_attach_takes_can_be_said_in_flags(load):
    space = '{"gripper": {"1": 0.5}}'
    handle = keystone.attached(
        load("--keystone.spec=kde:k=2,temperature=0.5", f"--keystone.space={space}", "--keystone.execute=3")
    )
    assert (handle.k, handle.engine.temperature, handle.execute) == (2, 0.5, 3)
    assert handle.space == keystone.ActionSpace(gripper={1: 0.5})


def test_without_the_flag_nothing_is_attached(load):
    policy = load()
    assert policy.config.keystone == KeystoneOptions()
    assert keystone.attached(policy) is None


def test_loaded_policy_is_attached_and_has_its_weights(load, checkpoint):
    plain, policy = load(), load("--keystone.k=4", "--keystone.rule=kde", "--keystone.whole=true", "--keystone.seed=3")
    handle = keystone.attached(policy)
    assert (handle.k, handle.rule.name, handle.rule.whole, handle.engine.seed) == (4, "kde", True, 3)
    assert type(policy) is DiffusionPolicy
    for name, value in plain.state_dict().items():
        assert torch.equal(policy.state_dict()[name], value), name


def test_k_is_sixteen_if_only_something_else_is_given(load):
    assert keystone.attached(load("--keystone.rule=medoid")).k == 16


def test_k_may_be_found_by_itself(load, monkeypatch, tmp_path):
    monkeypatch.setenv("KEYSTONE_PROFILES", str(tmp_path))
    assert keystone.attached(load("--keystone.k=auto")).engine.k_given is False
    monkeypatch.setenv("KEYSTONE_K", "auto")
    assert keystone.attached(load()).engine.k_given is False
    assert keystone.attached(load("--keystone.k=4")).engine.k_given
    with pytest.raises(KeystoneError, match=r"keystone\.k=many: expected a whole number"):
        load("--keystone.k=many")


def test_variables_that_are_no_options_do_not_turn_it_on(load, monkeypatch, tmp_path):
    for name in ("LOG", "PROFILES", "UPSTREAM", "SERVICE_HOST", "PORT"):
        monkeypatch.setenv(f"KEYSTONE_{name}", str(tmp_path))
    assert keystone.attached(load()) is None
    monkeypatch.setattr(flag, "install", lambda: "it does not fit")
    monkeypatch.setattr(sys, "argv", ["lerobot-eval"])
    importlib.reload(lerobot_policy_keystone)  # nor do they end a command that does not use it
    monkeypatch.undo()
    importlib.reload(lerobot_policy_keystone)


@pytest.mark.parametrize(
    "variables", [{"K": "8"}, {"K": "many"}, {"KK": "8"}, {"SERVICE_HOST": "10.0.0.1", "AUTH_URL": "x"}]
)
def test_policies_that_are_not_supported_are_made_whatever_the_environment_says(variables, monkeypatch, caplog):
    for name, value in variables.items():
        monkeypatch.setenv(f"KEYSTONE_{name}", value)
    policy = build("act")
    assert keystone.attached(policy) is None
    assert ("does not apply to this ACTPolicy" in caplog.text) == ("K" in variables)


def test_parameters_reach_the_rule(load):
    assert keystone.attached(load("--keystone.rule=coherent", "--keystone.share=0.5")).rule.share == 0.5


def test_environment_attaches_and_the_flag_wins(load, monkeypatch):
    monkeypatch.setenv("KEYSTONE_K", "8")
    monkeypatch.setenv("KEYSTONE_PARAMS", '{"tau": 0.5}')
    assert keystone.attached(load()).k == 8
    assert keystone.attached(load()).rule.tau == 0.5
    assert keystone.attached(load("--keystone.k=1")).k == 1
    assert keystone.attached(load("--keystone.rule=medoid")).rule.name == "medoid"


def test_fast_path_can_be_turned_off(load, monkeypatch):
    assert keystone.attached(load("--keystone.k=4")).engine.paths.fast
    assert not keystone.attached(load("--keystone.fast=false")).engine.paths.fast
    monkeypatch.setenv("KEYSTONE_FAST", "no")
    assert not keystone.attached(load("--keystone.k=4")).engine.paths.fast
    assert keystone.attached(load("--keystone.fast=true")).engine.paths.fast


def test_policy_class_used_directly(checkpoint, monkeypatch):
    monkeypatch.setenv("KEYSTONE_K", "8")
    assert keystone.attached(DiffusionPolicy.from_pretrained(checkpoint("diffusion"))).k == 8


def test_subclass_is_attached_once_it_is_complete(monkeypatch):
    class Own(DiffusionPolicy):
        name = "diffusion"

        def __init__(self, config, **kwargs):
            super().__init__(config, **kwargs)
            assert keystone.attached(self) is None

    config = build("diffusion").config
    config.keystone = KeystoneOptions(k=4)
    assert keystone.attached(Own(config)).k == 4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--keystone.rule=mediod"], "keystone.rule=mediod: unknown rule 'mediod': did you mean 'medoid'"),
        (["--keystone.rule=medoid", "--keystone.tau=0.5"], "has no parameter 'tau'"),
        (["--keystone.k=0"], "keystone.k=0: expected a whole number, 1 or more"),
        (["--keystone.compile=true"], "adapter diffusion has no denoising step"),
    ],
)
def test_wrong_options_are_errors(load, overrides, message):
    with pytest.raises(KeystoneError, match=message):
        load(*overrides)


def test_policy_that_cannot_choose_is_an_error(load):
    with pytest.raises(KeystoneError, match=r"act|ACT"):
        load("--keystone.k=4", name="act")


def test_saved_checkpoint_knows_nothing_of_keystone(load, checkpoint, tmp_path):
    policy = load("--keystone.k=4")
    policy.save_pretrained(tmp_path)
    saved, original = (json.loads((path / "config.json").read_text()) for path in (tmp_path, checkpoint("diffusion")))
    assert saved.keys() == original.keys()
    assert not any("keystone" in name for name in saved)
    assert saved["type"] == "diffusion"
    assert keystone.attached(DiffusionPolicy.from_pretrained(tmp_path)) is None
    trained = TrainPipelineConfig(dataset=DatasetConfig("somebody/data"), policy=policy.config).to_dict()
    assert trained["policy"] == saved


def test_copies_of_a_config_keep_the_field():
    config = build("diffusion", keystone=KeystoneOptions(k=4)).config
    assert copy.deepcopy(config).keystone.k == 4
    assert dataclasses.replace(config, n_obs_steps=1).keystone.k == 4


@pytest.mark.parametrize("name", POLICIES)
def test_config_of_every_tiny_policy_is_saved_without_the_field(name, tmp_path):
    config = build(name).config
    config.keystone = KeystoneOptions(k=4)
    config.save_pretrained(tmp_path)
    again = PreTrainedConfig.from_pretrained(tmp_path, cli_overrides=["--keystone.k=2"])
    assert "keystone" not in json.loads((tmp_path / "config.json").read_text())
    assert again.keystone == KeystoneOptions(k=2)


def test_wrapper_type(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("KEYSTONE_K", "8")
    monkeypatch.setenv("KEYSTONE_SEED", "5")
    config = KeystoneConfig(base_path=str(checkpoint("diffusion")), k=4, device="cpu", n_action_steps=3)
    policy = get_policy_class("keystone")(config)
    handle = keystone.attached(policy)
    assert (handle.k, handle.engine.seed, handle.adapter) == (4, 5, "diffusion")
    assert policy.inner.config.n_action_steps == 3
    assert config.input_features == policy.inner.config.input_features
    preprocessor, postprocessor = make_pre_post_processors(config)
    assert len(preprocessor.steps) > 2
    assert len(postprocessor.steps) > 1
    policy.save_pretrained(tmp_path)
    assert keystone.attached(get_policy_class("keystone").from_pretrained(tmp_path)).k == 4
    with pytest.raises(ValueError, match="base_path"):
        get_policy_class("keystone")(KeystoneConfig(device="cpu"))


def test_lerobot_that_does_not_fit_ends_commands_that_use_the_flag(monkeypatch):
    monkeypatch.setattr(PreTrainedConfig, "get_known_choices", lambda: {"new": int})
    assert "AttributeError" in flag.install()
    monkeypatch.setattr(sys, "argv", ["lerobot-eval", "--policy.path=x"])
    importlib.reload(lerobot_policy_keystone)  # not used: nothing happens
    monkeypatch.setattr(sys, "argv", ["lerobot-eval", "--policy.path=x", "--policy.keystone.k=4"])
    with pytest.raises(SystemExit, match=r"--policy.type=keystone --policy.base_path"):
        importlib.reload(lerobot_policy_keystone)
    monkeypatch.setattr(sys, "argv", ["lerobot-eval"])
    monkeypatch.setenv("KEYSTONE_K", "4")
    with pytest.raises(SystemExit, match=r"--policy.type=keystone"):
        importlib.reload(lerobot_policy_keystone)
    monkeypatch.undo()
    importlib.reload(lerobot_policy_keystone)


def test_a_plugin_that_cannot_be_imported_ends_commands_that_use_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "lerobot_policy_keystone.flag", None)
    monkeypatch.delattr(lerobot_policy_keystone, "flag")
    monkeypatch.setattr(sys, "argv", ["lerobot-eval"])
    monkeypatch.setenv("KEYSTONE_K", "8")
    with pytest.raises(SystemExit, match="ModuleNotFoundError"):
        importlib.reload(lerobot_policy_keystone)
    monkeypatch.undo()
    importlib.reload(lerobot_policy_keystone)
    assert lerobot_policy_keystone.problem == ""


def test_a_malformed_variable_ends_every_command_with_one_line(monkeypatch):
    monkeypatch.setenv("KEYSTONE_K", "many")
    with pytest.raises(SystemExit, match='KeyStone: KEYSTONE_K=many: expected a whole number, "auto", or a range'):
        importlib.reload(lerobot_policy_keystone)
    monkeypatch.undo()
    importlib.reload(lerobot_policy_keystone)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--policy.keystone.k=lots"], 'KeyStone: --policy.keystone.k=lots: expected a whole number, "auto"'),
        (["--policy.keystone.k", "lots"], '--policy.keystone.k=lots: expected a whole number, "auto"'),
        (["--policy.keystone.rule=mediod"], "did you mean 'medoid'?"),
        (["--policy.keystone.spec=core-maen:k=4"], "did you mean 'core-mean'?"),
        (["--policy.keystone.kk=4"], "--policy.keystone.kk: there is no such option: did you mean 'k'?"),
        (
            ["--policy.keystone.rule=medoid", "--policy.keystone.tau=0.2"],
            "tau",
        ),  # right by itself, wrong with this rule
    ],
)
def test_a_malformed_flag_ends_the_command_before_a_policy_is_loaded(monkeypatch, flags, said):
    monkeypatch.setattr(sys, "argv", ["lerobot-eval", "--policy.path=x", *flags])
    with pytest.raises(SystemExit) as ended:
        importlib.reload(lerobot_policy_keystone)
    assert said in str(ended.value)
    assert "\n" not in str(ended.value)
    monkeypatch.undo()
    importlib.reload(lerobot_policy_keystone)


def test_right_flags_pass_the_check():
    from lerobot_policy_keystone.options import check_command_line

    options = ['--policy.keystone.space={"dims": 7}', "--policy.keystone.k=auto", "--policy.keystone.seed=null"]
    check_command_line(["--policy.path=x", *options, "--policy.keystone.steps", "2"])
