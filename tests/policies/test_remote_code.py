"""A checkpoint that brings code along is not loaded, and the code does not run."""

import json
import shutil
import sys

import pytest

from keystone_robotics import KeystoneError
from keystone_robotics.cli import main
from keystone_robotics.evaluate.config import read_yaml
from keystone_robotics.policies import load_agent
from keystone_robotics.policies.lerobot_checkpoint import load_policy
from keystone_robotics.policies.remote_code import remote_code
from keystone_robotics.profiling.subject import load_subject
from tiny import build
from tiny.checkpoint import env_features, save_checkpoint

HOSTILE = """
from pathlib import Path
from lerobot.processor import ProcessorStep

Path("imported").touch()

class Step(ProcessorStep):
    def __init__(self, **config):
        Path("called").touch()
    def __call__(self, transition):
        return transition
    def transform_features(self, features):
        return features
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "diffusion"
    save_checkpoint(build("diffusion", **env_features("pusht")), folder, "pusht")
    return folder


@pytest.fixture
def checkpoint(saved, tmp_path, monkeypatch):
    """A real checkpoint, beside a module that its processors name."""
    shutil.copytree(saved, tmp_path / "checkpoint")
    (tmp_path / "hostile_steps.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hostile_steps", raising=False)
    return tmp_path / "checkpoint"


def add_step(checkpoint, file, step):
    document = json.loads((checkpoint / file).read_text())
    document["steps"].append(step)
    (checkpoint / file).write_text(json.dumps(document))


def ran(checkpoint):
    return [name for name in ("imported", "called") if (checkpoint.parent / name).exists()]


LOADERS = {
    "check": load_policy,
    "eval": load_agent,
    "profile": lambda name, device, trust=False: load_subject(name, device, None, trust),
}


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("file", ["policy_preprocessor.json", "policy_postprocessor.json"])
def test_a_class_that_lerobot_did_not_install(checkpoint, file, load):
    add_step(checkpoint, file, {"class": "hostile_steps.Step", "config": {}})
    with pytest.raises(KeystoneError, match=r"was not loaded: .* step 'hostile_steps.Step'.*--trust-remote"):
        load(str(checkpoint), "cpu")
    assert ran(checkpoint) == []
    load(str(checkpoint), "cpu", True)
    assert ran(checkpoint) == ["imported", "called"]


@pytest.mark.parametrize(
    "name", ["os.system", "lerobot.utils.utils.init_logging", "lerobot_policy_x.Step", 3, "lerobot"]
)
def test_what_is_not_a_processor_step_of_lerobot(checkpoint, name):
    add_step(checkpoint, "policy_preprocessor.json", {"class": name, "config": {}})
    with pytest.raises(KeystoneError, match="was not loaded: it names the processor step"):
        load_policy(str(checkpoint), "cpu")


def test_a_tokenizer_with_code_of_its_own(checkpoint):
    """LeRobot loads action tokenizers with trust_remote_code, from whichever repository or folder the checkpoint names."""
    tokenizer = checkpoint.parent / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "processor_config.json").write_text(
        json.dumps({"processor_class": "Mine", "auto_map": {"AutoProcessor": "processing_mine.Mine"}})
    )
    (tokenizer / "processing_mine.py").write_text(
        f"from pathlib import Path\nPath({str(checkpoint.parent / 'called')!r}).touch()\nclass Mine:\n    pass\n"
    )
    step = {"registry_name": "action_tokenizer_processor", "config": {"action_tokenizer_name": str(tokenizer)}}
    add_step(checkpoint, "policy_preprocessor.json", step)
    with pytest.raises(
        KeystoneError, match=r"was not loaded: it names the class 'Mine' in the file .*processing_mine.py"
    ):
        load_policy(str(checkpoint), "cpu")
    assert ran(checkpoint) == []
    with pytest.raises(KeystoneError, match="processors cannot be loaded"):  # it is no tokenizer, but it ran
        load_policy(str(checkpoint), "cpu", trust_remote_code=True)
    assert ran(checkpoint) == ["called"]


def test_what_lerobot_and_transformers_do_is_restored(checkpoint):
    import transformers.dynamic_module_utils as dynamic
    from lerobot.processor.pipeline import DataProcessorPipeline

    before = vars(DataProcessorPipeline)["_resolve_step_class"], dynamic.get_class_in_module
    with pytest.raises(ZeroDivisionError), remote_code("x", trusted=False):
        raise ZeroDivisionError
    assert (vars(DataProcessorPipeline)["_resolve_step_class"], dynamic.get_class_in_module) == before


def test_an_unknown_lerobot_is_not_trusted(monkeypatch):
    """If LeRobot renames what is guarded, nothing is loaded without the guard."""
    from lerobot.processor.pipeline import DataProcessorPipeline

    monkeypatch.delattr(DataProcessorPipeline, "_resolve_step_class")
    with pytest.raises(KeystoneError, match="in another place than KeyStone guards"), remote_code("x", trusted=False):
        pass


def test_the_commands_refuse_and_allow(checkpoint, capsys):
    add_step(checkpoint, "policy_preprocessor.json", {"class": "hostile_steps.Step", "config": {}})
    evaluation = ["eval", "--policy", str(checkpoint), "--env", "pusht", "--out", "out", "--episodes", "1"]
    for command in (["check", str(checkpoint)], ["profile", str(checkpoint)], evaluation):
        assert main(command) == 2
        assert "--trust-remote-code" in capsys.readouterr().err
    assert ran(checkpoint) == []
    assert main(["check", str(checkpoint), "--k", "2", "--trust-remote-code"]) == 0
    assert ran(checkpoint) == ["imported", "called"]


def test_a_file_cannot_consent(tmp_path, capsys):
    path = tmp_path / "eval.yaml"
    path.write_text("{policy: p, env: pusht, tasks: [pusht], trust_remote_code: true}")
    assert main(["eval", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "give --trust-remote-code" in capsys.readouterr().err
    path.write_text("trust_remote_code: false")  # as in a run's settings.json
    assert read_yaml(path) == {"trust_remote_code": False}
