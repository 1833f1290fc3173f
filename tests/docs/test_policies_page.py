"""docs/policies.md lists the adapters that exist, and the numbers of denoising steps that LeRobot has."""

import dataclasses
import inspect
import re
import runpy
from pathlib import Path

import pytest
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.groot.groot_n1_7 import GR00TN17Config
from lerobot.policies.molmoact2.molmoact2_hf_model.configuration_molmoact2 import MolmoAct2Config
from lerobot.policies.wall_x.modeling_wall_x import Qwen2_5_VLMoEForAction

from keystone_robotics.sample.families import ADAPTERS

SCRIPT = Path(__file__).parents[2] / "scripts" / "policies_table.py"
STEPS = re.compile(r"num_(inference_|integration_|denois\w*_)?(time)?steps")

#: Of the models inside, where the policy's configuration has no number.
INSIDE = {
    "groot": lambda: GR00TN17Config().num_inference_timesteps,
    "molmoact2": lambda: default_of(MolmoAct2Config.__init__, "flow_matching_num_steps"),
    "wall_x": lambda: default_of(Qwen2_5_VLMoEForAction.predict, "num_inference_timesteps"),
}


def default_of(method, argument):
    return inspect.signature(method).parameters[argument].default


def test_table_matches_the_adapters():
    script = runpy.run_path(str(SCRIPT))
    assert script["PAGE"].read_text() == script["page"](), "run: python scripts/policies_table.py"


def test_every_recipe_is_in_the_table():
    named = {name for names in runpy.run_path(str(SCRIPT))["RECIPES"].values() for name in names}
    assert named == {path.stem for path in (SCRIPT.parents[1] / "docs" / "recipes").glob("*.md")}


@pytest.mark.parametrize(
    "name", [name for name, one in ADAPTERS.items() if one.project == "LeRobot" and not one.refusal]
)
def test_default_steps_are_lerobots(name):
    import lerobot.policies  # noqa: F401 (registers the configurations)

    defaults = {one.name: one.default for one in dataclasses.fields(PreTrainedConfig.get_choice_class(name))}
    found = {value for key, value in defaults.items() if STEPS.fullmatch(key)}
    if "as many as" in ADAPTERS[name].steps_by_default:
        found.add(defaults["num_train_timesteps"])
    if name in INSIDE:
        found.add(INSIDE[name]())
    assert {int(number) for number in re.findall(r"\d+", ADAPTERS[name].steps_by_default)} == found - {None}
