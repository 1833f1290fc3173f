"""`keystone vla-eval`: scripts, configurations, shims, and what is said when they are not what they should be."""

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
import reach_server
import tomllib
import vla_eval
import yaml
from vla_eval.cli.config_loader import load_config
from vla_eval.model_servers import serve

import keystone_robotics as keystone
from keystone_robotics.cli import main
from keystone_robotics.integrations.vla_eval import serve_script, shim
from keystone_robotics.integrations.vla_eval.command import read_target, serve_command
from keystone_robotics.integrations.vla_eval.shim import PACKAGE, requirement_of_keystone

SCRIPT = Path(reach_server.__file__)
SERVERS = Path(vla_eval.__file__).parent / "model_servers"
SCRIPTS = sorted(path for path in SERVERS.rglob("*.py") if "# /// script" in path.read_text())


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "keystone" / "vla-eval"


@pytest.fixture
def config(tmp_path):
    """A configuration as users have them, one file extending another, with a block of ours."""
    (tmp_path / "base.yaml").write_text(yaml.dump({"script": str(SCRIPT), "args": {"chunk_size": 4, "port": 8123}}))
    path = tmp_path / "server.yaml"
    path.write_text(yaml.dump({"extends": "base.yaml", "args": {"keystone": {"k": 4, "rule": "density"}}}))
    return path


@pytest.fixture
def served(monkeypatch):
    """The servers that would have been served."""
    servers = []
    monkeypatch.setattr(serve, "serve", lambda server, host, port: servers.append((server, port)))
    return servers


@pytest.fixture
def executed(monkeypatch):
    """What this process would have become."""
    calls = []
    monkeypatch.setattr("os.execve", lambda program, command, environment: calls.append((command, environment)))
    return calls


def arguments(command):
    """The --arg of a command, by name."""
    return dict(command[at + 1].split("=", 1) for at, word in enumerate(command) if word == "--arg")


def test_a_configuration_keeps_its_arguments_and_gets_the_shim(config, executed, cache):
    assert (
        main(["vla-eval", "serve", str(config), "--seed", "3", "--rounds", "out/rounds.jsonl", "--arg", "bias=0.5"])
        == 0
    )
    ((command, environment),) = executed
    assert command[:4] == [sys.executable, "-m", "vla_eval.cli.main", "serve"]
    written = load_config(command[command.index("--config") + 1])
    assert written["args"]["chunk_size"] == 4
    assert Path(written["script"]).parent == cache
    assert repr(str(SCRIPT)) in Path(written["script"]).read_text()
    options = arguments(command)
    assert json.loads(options.pop("keystone")) == {
        "k": 4, "rule": "density", "seed": 3, "rounds": str(Path.cwd() / "out" / "rounds.jsonl"),
    }  # fmt: skip
    assert options == {"bias": "0.5"}
    assert environment["PATH"].startswith(str(Path(sys.executable).parent))


def test_options_of_the_command_go_over_the_block(config, executed):
    line = [
        "-k",
        "8",
        "--rule",
        "keystone",
        "--params",
        "tau=0.5",
        "--clusters",
        "3",
        "--space",
        '{"dims": 7}',
        "--address",
        ":81",
    ]
    assert main(["vla-eval", "serve", str(config), *line]) == 0
    ((command, _),) = executed
    block = {"k": 8, "rule": "keystone", "clusters": 3, "tau": 0.5, "space": {"dims": 7}}
    assert json.loads(arguments(command)["keystone"]) == block
    assert command[command.index("--address") + 1] == ":81"


def test_the_environment_is_below_the_block_and_the_block_below_the_command(config, executed, monkeypatch):
    for name, value in (("K", "2"), ("METRIC", "l1"), ("FAST", "true"), ("SEED", "5"), ("LOG", "rounds.jsonl")):
        monkeypatch.setenv(f"KEYSTONE_{name}", value)
    assert main(["vla-eval", "serve", str(config), "--fast", "false", "--compile", "true", "--seed", "6"]) == 0
    ((command, _),) = executed
    assert json.loads(arguments(command)["keystone"]) == {
        "rule": "density", "k": 4, "seed": 6, "metric": "l1", "fast": False, "compile": True,
        "rounds": str(Path.cwd() / "rounds.jsonl"),
    }  # fmt: skip


def test_a_wrong_environment_is_told(executed, monkeypatch, capsys):
    monkeypatch.setenv("KEYSTONE_METRIC", "l3")
    assert main(["vla-eval", "serve", str(SCRIPT)]) == 2
    assert "l3" in capsys.readouterr().err
    assert not executed


def test_k_may_be_found_in_the_first_round(executed):
    assert main(["vla-eval", "serve", str(SCRIPT), "--k", "auto"]) == 0
    ((command, _),) = executed
    assert json.loads(arguments(command)["keystone"]) == {"rule": "keystone", "k": "auto"}


def test_a_script_that_only_mentions_requirements_has_none(tmp_path, executed):
    script = tmp_path / "server.py"
    script.write_text(f'"""Für Roboter, without # /// script."""\n{SCRIPT.read_text()}', encoding="utf-8")
    assert main(["vla-eval", "serve", str(script)]) == 0
    ((_, environment),) = executed
    assert environment["UV_NO_PROJECT"] == "1"


def test_a_script_alone_is_served_with_sixteen_candidates(executed):
    assert main(["vla-eval", "serve", str(SCRIPT)]) == 0
    ((command, environment),) = executed
    assert json.loads(arguments(command)["keystone"]) == {"rule": "keystone", "k": 16}
    assert (environment["VIRTUAL_ENV"], environment["UV_NO_PROJECT"]) == (sys.prefix, "1")


def test_a_script_with_requirements_runs_where_uv_puts_it(tmp_path, monkeypatch, executed):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    script = tmp_path / "server.py"
    script.write_text(f"# /// script\n# dependencies = []\n# ///\n{SCRIPT.read_text()}")
    assert main(["vla-eval", "serve", str(script)]) == 0
    ((_, environment),) = executed
    assert not {"VIRTUAL_ENV", "UV_NO_PROJECT"} & environment.keys()


def test_the_same_script_has_the_same_shim(config):
    commands = [serve_command(read_target(config), {}) for _ in range(2)]
    assert commands[0] == commands[1]


def test_vla_evals_own_entry_builds_the_wrapped_server(tmp_path, monkeypatch, served):
    shim_path = tmp_path / "shim.py"
    assert main(["vla-eval", "shim", str(SCRIPT), "--out", str(shim_path)]) == 0
    monkeypatch.setattr(
        sys, "argv", ["shim.py", "--args.keystone={\"k\": 3, \"tau\": 0.4}", "--args.bias=0.5", "--port=8124"]
    )  # fmt: skip
    exec(compile(shim_path.read_text(), str(shim_path), "exec"), {"__name__": "__main__"})
    ((server, port),) = served
    assert (type(server).__name__, server.bias, port) == ("KeyStoneReachServer", 0.5, 8124)
    handle = server._keystone_serving.handle
    assert (handle.k, handle.rule.tau) == (3, 0.4)
    assert serve.run_server.__module__ == "vla_eval.model_servers.serve"  # put back


@pytest.mark.parametrize(
    ("line", "k"), [(["--config=server.yaml"], 4), (["--config=server.yaml", "--args.keystone.k=2"], 2), ([], None)]
)
def test_a_block_in_the_configuration_does_the_same(tmp_path, monkeypatch, served, line, k):
    (tmp_path / "server.yaml").write_text(yaml.dump({"script": str(SCRIPT), "args": {"keystone": {"k": 4}}}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["shim.py", *line])
    serve_script(SCRIPT)
    ((server, _),) = served
    assert getattr(server, "keystone_k", None) == k


def test_wrong_options_end_the_server_with_one_line(monkeypatch, served, capsys):
    monkeypatch.setattr(sys, "argv", ["shim.py", '--args.keystone={"kk": 3}'])
    with pytest.raises(SystemExit, match="2"):
        serve_script(SCRIPT)
    assert capsys.readouterr().err.startswith("keystone: there is no option 'kk': did you mean 'k'?")
    assert not served


def test_a_script_without_a_server_is_told(tmp_path, capsys):
    script = tmp_path / "other.py"
    script.write_text("print('hello')")
    with pytest.raises(SystemExit, match="2"):
        serve_script(script)
    assert "did not start a server: expected a vla-eval server script" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nothing.yaml", None, "there is no file"),
        ("server.txt", "", r"expected a vla-eval server script \(\.py\) or its configuration \(\.yaml\)"),
        ("server.yaml", "args: {}", "names no server: expected `script: path/to/server.py`"),
        ("server.yaml", "benchmarks: []", "so it is for `vla-eval run`"),
        ("server.yaml", "script: not/here.py", "names the script not/here.py, which does not exist.*current directory"),
        ("server.yaml", "script: [", "cannot be read"),
        ("server.yaml", "extends: away.yaml", "cannot be read.*away.yaml"),
        ("server.yaml", f"script: {SCRIPT}\nargs: {{keystone: {{kay: 4}}}}", "there is no option 'kay'"),
        ("server.yaml", f"script: {SCRIPT}\nargs: {{keystone: 4}}", "is not a block of options"),
    ],
)
def test_wrong_targets_are_refused(tmp_path, executed, capsys, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert main(["vla-eval", "serve", str(path)]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not executed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--params", "tua=0.5"], "there is no option 'tua': did you mean 'tau'"),
        (["--params", "tau"], "--params=tau: 'tau' is not name=value"),
        (["--space", "{dims: 7}"], "--space={dims: 7}: expected an ActionSpace, or its arguments"),
        (["--arg", "bias"], "--arg bias: expected KEY=VALUE"),
        (["--k", "0"], "--k=0: expected a whole number, 1 or more"),
    ],
)
def test_wrong_options_are_refused(executed, capsys, line, message):
    assert main(["vla-eval", "serve", str(SCRIPT), *line]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not executed


def test_without_uv_it_is_said_what_to_install(monkeypatch, executed, capsys):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert main(["vla-eval", "serve", str(SCRIPT)]) == 2
    assert "pip install uv" in capsys.readouterr().err


def test_a_shim_is_not_written_over_its_script(tmp_path, config, capsys):
    assert main(["vla-eval", "shim", str(SCRIPT), "--out", str(SCRIPT)]) == 2
    assert "is the script itself" in capsys.readouterr().err
    assert main(["vla-eval", "shim", str(config), "--out", str(tmp_path / "shim.py")]) == 2
    assert "expected the script that it names" in capsys.readouterr().err


def header(text):
    """The requirements in a script, as PEP 723's reference reads them."""
    (block,) = re.findall(r"(?m)^# /// script$\s((?:^#(?:| .*)$\s)+)^# ///$", text)
    return tomllib.loads("".join(line[2:] if line.startswith("# ") else line[1:] for line in block.splitlines(True)))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(SERVERS).with_suffix("").as_posix())
def test_the_shim_of_every_server_of_vla_eval(script):
    before, after = header(script.read_text()), header(shim.shim(script))
    assert after.pop("dependencies") == [PACKAGE, *before.pop("dependencies")]
    sources, own = after["tool"]["uv"].pop("sources"), before["tool"]["uv"].pop("sources")
    root = Path(keystone.__file__).parents[2]
    assert sources.pop(PACKAGE) == {"path": str(root), "editable": True}
    for name, source in own.items():
        if "path" in source:
            source["path"] = str((script.parent / source["path"]).resolve())
        assert sources.pop(name) == source
    assert not sources
    assert after == before


HEADERS = {
    "one line": 'requires-python = ">=3.10"\ndependencies = ["torch", "numpy"]',
    "none": 'requires-python = ">=3.10"',
    "empty": "dependencies = []",
    "several lines": 'dependencies = [\n  "torch", # for the model\n  "numpy",\n]\n\n[tool.uv]\nexclude-newer = "2026-01-01"',
    "others called so": '[tool.uv]\nconstraint-dependencies = ["torch<3"]\noverride-dependencies = ["numpy<3"]',
    "sources": "dependencies = [\"a\"]\n\n[tool.uv.sources]\na = { path = '../b' }",
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_headers_in_all_forms(tmp_path, content):
    script = tmp_path / "server.py"
    script.write_text(
        "# /// script\n" + textwrap.indent(content, "# ", lambda _: True).replace("# \n", "#\n") + "\n# ///\n"
    )
    before, after = header(script.read_text()), header(shim.shim(script))
    assert after.pop("dependencies") == [PACKAGE, *before.pop("dependencies", [])]
    assert after["tool"]["uv"]["sources"].pop(PACKAGE)["editable"]
    for source in before.get("tool", {}).get("uv", {}).get("sources", {}).values():
        source["path"] = str(tmp_path.parent / "b")
    before.setdefault("tool", {}).setdefault("uv", {}).setdefault("sources", {})
    assert after == before


def test_a_script_without_a_header_keeps_none():
    assert "///" not in shim.shim(SCRIPT)


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, f"{PACKAGE}=={keystone.__version__}"),
        ({"url": "file:///a/keystone.whl", "archive_info": {}}, f"{PACKAGE} @ file:///a/keystone.whl"),
        ({"url": "https://h/k", "vcs_info": {"vcs": "git", "commit_id": "abc"}}, f"{PACKAGE} @ git+https://h/k@abc"),
    ],
)
def test_an_installed_keystone_is_required_from_where_it_came(tmp_path, monkeypatch, origin, requirement):
    class Installed:
        @classmethod
        def from_name(cls, name):
            return cls()

        def read_text(self, name):
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(keystone, "__file__", str(tmp_path / "lib" / "site-packages" / "keystone" / "__init__.py"))
    monkeypatch.setattr(shim, "Distribution", Installed)
    assert requirement_of_keystone() == (requirement, None)
