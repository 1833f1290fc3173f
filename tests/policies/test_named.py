"""Nothing is called by its name before it is known to be a maker of what is wanted."""

import sys

import pytest

from keystone_robotics import KeystoneError, factory
from keystone_robotics.cli import main
from keystone_robotics.environments import Benchmark, find_benchmark
from keystone_robotics.named import make_named
from keystone_robotics.policies import load_agent
from keystone_robotics.profiling.subject import load_subject

MODULE = """
import functools
from pathlib import Path
from typing import TYPE_CHECKING
from keystone_robotics import factory
from keystone_robotics.environments import Benchmark
if TYPE_CHECKING:
    from nowhere import Missing

def touch(path):
    Path(path).touch()

def pair(path) -> tuple:
    Path(path).touch()
    return 1, 2

def unknown(path) -> "Missing":
    Path(path).touch()

class Toucher:
    def __init__(self, path):
        Path(path).touch()

class Everything:
    def __getattr__(self, name):
        return True
    def __call__(self, path):
        Path(path).touch()

everything = Everything()
partial = functools.partial(touch)

class Mine(Benchmark):
    name = "mine"
    def __init__(self, path="x"):
        self.path = path
    def tasks(self): ...
    def make(self, task, render=False): ...
    def max_steps(self, task): ...

def annotated(path) -> Mine:
    return Mine(path)

@factory
def marked(path):
    return Mine(path)

@factory
def returns_pair(path):
    return 1, 2
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "hostile_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "hostile_module", raising=False)
    return tmp_path / "touched"


LOADERS = {"env": find_benchmark, "policy": load_agent, "profile": lambda name: load_subject(name, None, None)}


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize(
    "name",
    ["os:system?command=touch%20touched", "subprocess:getoutput?cmd=touch%20touched", "builtins:open?file=touched&mode=w",
     "pathlib:Path?path=touched", "subprocess:Popen?args=touch%20touched",
     *(f"hostile_module:{name}?path=touched" for name in ("touch", "pair", "unknown", "Toucher", "everything", "partial"))],
)  # fmt: skip
def test_what_is_not_a_maker_is_refused_before_it_is_called(mine, load, name):
    with pytest.raises(KeystoneError, match=r"was not called|is an object, not a function") as raised:
        load(name)
    assert "\n" not in str(raised.value)
    assert not mine.exists()


def test_the_refusal_says_what_may_be_called(mine):
    with pytest.raises(
        KeystoneError, match=r"the function hostile_module.touch, expected a Benchmark.*-> Benchmark.*factory"
    ):
        find_benchmark("hostile_module:touch?path=touched")


def test_classes_annotated_and_marked_functions_are_called(mine):
    for name in ("Mine", "annotated", "marked"):
        assert find_benchmark(f"hostile_module:{name}?path=here").path == "here"
    assert load_subject("hostile_module:returns_pair?path=x", None, None) == (1, 2, None)
    with pytest.raises(KeystoneError, match="is 'tuple': expected"):
        make_named("hostile_module:returns_pair?path=x", Benchmark)


def test_factory_marks_functions_only():
    with pytest.raises(TypeError, match="factory marks functions"):
        factory(len)


def test_a_yaml_file_runs_no_shell_command(mine, capsys):
    for key, other in (("env", "policy: metaworld-mixed"), ("policy", "env: metaworld")):
        (mine.parent / "run.yaml").write_text(f'{key}: "os:system?command=touch touched"\n{other}\narms: [first]\n')
        assert main(["eval", "run.yaml", "--out", "out"]) == 2
        assert "was not called" in capsys.readouterr().err
    assert not mine.exists()


def test_a_module_or_function_that_exits_is_one_error(tmp_path, monkeypatch):
    (tmp_path / "exits_at_import.py").write_text("import sys\nsys.exit('no display')\n")
    (tmp_path / "exits_when_called.py").write_text(
        "import sys\nfrom keystone_robotics import factory\n@factory\ndef make():\n    sys.exit('no display')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeystoneError, match="exits_at_import cannot be imported: SystemExit: no display"):
        make_named("exits_at_import:make", Benchmark)
    with pytest.raises(KeystoneError, match="exits_when_called:make failed: SystemExit: no display"):
        make_named("exits_when_called:make", Benchmark)
