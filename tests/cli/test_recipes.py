"""Every row of the paper has a recipe, and what the recipes say can be run."""

import functools
import importlib
import inspect
import json
import pkgutil
import re
import shlex
import sys
from pathlib import Path

import pytest
import tomllib
from tyro.extras import SubcommandApp

import keystone_robotics as keystone
import keystone_robotics.cli
from keystone_robotics.cli import main, recipes, vla_eval

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs" / "recipes").glob("*.md"))
SECTIONS = ["Set up", "Baseline", "KeyStone", "Profile", "Compare", "Run here"]

#: The paper's main table: model, workload, K, success at K = 1 and with KeyStone.
PAPER = [
    ("π0.5", "LIBERO", "16", "96.8 ± 0.7", "97.8 ± 1.1"),
    ("SmolVLA", "LIBERO", "16", "50.4 ± 2.1", "57.2 ± 1.3"),
    ("GR00T N1.6", "SimplerEnv WidowX", "4", "50.0 ± 4.3", "63.3 ± 2.9"),
    ("X-VLA", "SimplerEnv WidowX", "4", "92.7 ± 1.0", "95.8 ± 1.0"),
    ("StarVLA", "SimplerEnv WidowX", "16", "52.8 ± 1.6", "59.7 ± 1.3"),
    ("GR00T N1.6", "SimplerEnv Google Robot", "4", "79.4 ± 3.5", "86.7 ± 1.5"),
    ("Fast-WAM", "RoboTwin 2.0", "16", "90.0 ± 1.5", "93.0 ± 1.0"),
]


def section(text, name):
    return re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE).group(1)


def commands(text):
    """Indented commands, continued lines joined, comments and loops' variables as a shell would take them."""
    for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE):
        for line in re.sub(r" *\\\n *", " ", block).splitlines():
            yield line.strip()


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("row", PAPER, ids=" ".join)
def test_every_row_of_the_paper_has_a_recipe(row):
    line = "| " + " | ".join(row) + " |"
    assert sum(line in path.read_text().splitlines() for path in FILES) == 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recipes_say_how_and_what_was_run(path):
    text = path.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    for name in ("Baseline", "KeyStone", "Compare"):
        assert list(commands(section(text, name))), f"{path.name}: no command under {name}"
    assert blocks(section(text, "Profile"), "python") or list(commands(section(text, "Profile")))
    assert "Not run" in section(text, "Run here")


@pytest.fixture
def parsed(monkeypatch):
    """What the commands of the real command line are called with; they do nothing."""
    calls = []

    def instead_of(command):
        @functools.wraps(command)
        def called(*args, **kwargs):
            calls.append((command.__module__, command.__name__, args, kwargs))

        return called

    for module_info in pkgutil.iter_modules(keystone_robotics.cli.__path__):
        module = importlib.import_module(f"keystone_robotics.cli.{module_info.name}")
        if inspect.isfunction(getattr(module, "run", None)):
            monkeypatch.setattr(module, "run", instead_of(module.run))
    servers = SubcommandApp()
    for command in (vla_eval.serve, vla_eval.shim):
        servers.command(instead_of(command))
    monkeypatch.setattr(vla_eval, "run", servers)
    return calls


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_keystone_commands_are_understood(path, parsed, capsys):
    ours = [line for line in commands(path.read_text()) if line.startswith("keystone ")]
    assert ours, f"{path.name} uses no command of ours"
    for line in ours:
        parsed.clear()
        arguments = shlex.split(line, comments=True)[1:]
        assert main(arguments) == 0, f"{line}\n{capsys.readouterr().err}"
        assert len(parsed) == 1, line


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_wrong_option_would_be_noticed(path, parsed, capsys):
    line = next(line for line in commands(path.read_text()) if line.startswith("keystone "))
    with pytest.raises(SystemExit):
        main([*shlex.split(line, comments=True)[1:], "--no-such-option"])
    assert not parsed


PROFILES = [path for path in FILES if "rounds.jsonl" in path.read_text()]


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_the_rounds_of_a_log_are_summed_up(path, tmp_path, monkeypatch, capsys):
    lines = [{"k": k, "sampling_seconds": k / 100, "selection_seconds": 0.001} for k in (4, 2, 4)]
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(section(path.read_text(), "Profile"), "python")[0], path.name, "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["K = 2: 21.0 ms (1 rounds)", "K = 4: 41.0 ms (2 rounds)"]


def collected(name, folder, monkeypatch):
    """Run the recipe's own way of making a table of episodes, then compare as it says."""
    text = (ROOT / "docs" / "recipes" / f"{name}.md").read_text()
    monkeypatch.chdir(folder)
    exec(compile(blocks(section(text, "Compare"), "python")[0], name, "exec"), {})
    line = next(line for line in commands(section(text, "Compare")) if line.startswith("keystone compare"))
    return main(shlex.split(line)[1:])


def test_robotwins_logs_become_a_comparison(tmp_path, monkeypatch, capsys):
    for folder, fails in (("k1", 30), ("k16", 5)):
        (tmp_path / folder / "deep").mkdir(parents=True)
        ends = ["\033[91mFail!\033[0m"] * fails + ["\033[92mSuccess!\033[0m"] * (60 - fails)
        for task in ("beat_block_hammer", "lift_pot"):
            log = tmp_path / folder / "deep" / f"eval_{task}_20260101_120000.log"
            log.write_text("\n".join(["noise", *ends, "Success rate: 1/2"]))
    assert collected("fastwam-robotwin", tmp_path, monkeypatch) == 0
    out = capsys.readouterr().out
    assert "beat_block_hammer" in out
    assert "50.0" in out
    assert "91.7" in out


def test_openpis_logs_become_a_comparison(tmp_path, monkeypatch, capsys):
    for log, fails in (("k1.log", 30), ("k16.log", 5)):
        lines = [
            f"INFO:root:\nTask: {task}\nINFO:root:Success: {number >= fails}"
            for task in ("put the bowl on the plate", "open the drawer")
            for number in range(60)
        ]
        (tmp_path / log).write_text("\n".join(lines))
    assert collected("pi05-libero-openpi", tmp_path, monkeypatch) == 0
    out = capsys.readouterr().out
    assert "put the bowl" in out
    assert "91.7" in out


PRINTED = {  # what the projects' evaluations print of an episode
    "rdt-maniskill": ("k16", "Trial 1 finished, success: tensor([{}]), steps: 40", "True", "False"),
    "h-rdt-robotwin": ("k16", "\033[92m{}!\033[0m", "Success", "Fail"),
    "cosmos-policy-libero": ("k4", "Success: {}", "True", "False"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_what_an_evaluation_prints_becomes_a_comparison(name, tmp_path, monkeypatch, capsys):
    after, line, success, fail = PRINTED[name]
    for log, fails in (("k1", 30), (after, 5)):
        lines = [line.format(fail)] * fails + [line.format(success)] * (60 - fails)
        (tmp_path / f"{log}.log").write_text("\n".join(["noise", *lines]))
    assert collected(name, tmp_path, monkeypatch) == 0
    out = capsys.readouterr().out
    assert "50.0" in out
    assert "91.7" in out


#: Small files instead of the modules that a recipe's script imports from the project.
PROJECTS = {
    "rdt-maniskill": {
        "scripts/maniskill_model.py": "from types import SimpleNamespace\nfrom upstream_like.rdt_like import RDTRunner\n"
        "def create_model(size):\n    return SimpleNamespace(policy=RDTRunner().eval())\n",
        "eval_sim/eval_rdt_maniskill.py": "from scripts.maniskill_model import create_model\n"
        "from upstream_like.rdt_like import predict\nassert __name__ == '__main__'\npredict(create_model(size=1).policy, 1)\n",
    },
    "h-rdt-robotwin": {
        "H-RDT/__init__.py": "from types import SimpleNamespace\nfrom upstream_like.rdt_like import HRDTRunner, predict\n"
        "def get_model(arguments):\n    return SimpleNamespace(policy=HRDTRunner().eval())\n"
        "def eval(model):\n    predict(model.policy, 1)\nreset_model = print\n",
    },
    "cosmos-policy-libero": {
        "cosmos_policy/constants.py": "from upstream_like.cosmos_policy_like import DIMS as ACTION_DIM\n"
        "from upstream_like.cosmos_policy_like import STEPS as NUM_ACTIONS_CHUNK\n",
        "cosmos_policy/experiments/robot/cosmos_utils.py": "from upstream_like.cosmos_policy_like import CosmosPolicyLike\n"
        "import cosmos_policy.constants\ndef get_model(config):\n    return CosmosPolicyLike().eval(), config\n",
        "cosmos_policy/experiments/robot/libero/run_libero_eval.py": "from upstream_like.cosmos_policy_like import predict\n"
        "from cosmos_policy.experiments.robot.cosmos_utils import get_model\nassert __name__ == '__main__'\n"
        "predict(get_model(1)[0], 1)\n",
    },
}


@pytest.mark.parametrize("name", PROJECTS)
def test_a_recipes_script_attaches_to_what_the_project_loads(name, tmp_path, monkeypatch):
    for path, text in PROJECTS[name].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KEYSTONE_SPEC", "core-mean:k=4,steps=2")
    monkeypatch.setenv("KEYSTONE_LOG", str(tmp_path / "rounds.jsonl"))
    (script,) = blocks(section((ROOT / "docs" / "recipes" / f"{name}.md").read_text(), "Set up"), "python")
    before = set(sys.modules)
    scope: dict = {}
    try:
        exec(compile(script, name, "exec"), scope)
        if "eval" in scope:  # a policy that the benchmark's own script loads
            scope["eval"](scope["get_model"]({}))
    finally:
        for module in set(sys.modules) - before:
            if getattr(sys.modules[module], "__file__", None) is None or str(tmp_path) in str(
                sys.modules[module].__file__
            ):
                del sys.modules[module]
    (line,) = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert json.loads(line)["k"] == 4


def test_the_command_lists_prints_and_suggests(capsys):
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out
    assert all(path.stem in listed for path in FILES)
    assert "GR00T N1.6 on SimplerEnv WidowX" in listed
    assert main(["recipes", "xvla-widowx"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "recipes" / "xvla-widowx.md").read_text()
    assert main(["recipes", "xvla-widowz"]) == 2
    assert "did you mean 'xvla-widowx'" in capsys.readouterr().err


def test_missing_recipes_are_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(recipes, "_FOLDERS", (tmp_path,))
    assert main(["recipes"]) == 2
    assert "the recipes are missing" in capsys.readouterr().err


def test_the_wheel_takes_the_recipes_to_where_the_command_looks():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    target = wheel["force-include"]["docs/recipes"]
    assert Path(keystone.__file__).parents[1] / target == recipes._FOLDERS[0]
