"""What is shipped: the wheels hold what they should, and the product works where there is only torch and numpy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECTS = {"product": ROOT, "study": ROOT / "study", "plugin": ROOT / "packages" / "lerobot_policy_keystone"}
STUDY_COMMANDS = {"demo", "demonstrations", "train", "reproduce", "roofline"}


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # no source tree comes first
    return subprocess.run([*map(str, command)], cwd=cwd, env=alone, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    for name, project in PROJECTS.items():
        built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / name, cwd=project)
        assert built.returncode == 0, built.stderr
    return {name: next((folder / name).glob("*.whl")) for name in PROJECTS}


def required(names: Iterable[str]) -> set[str]:
    """Distributions with everything that they require here."""
    found: set[Requirement] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        if wanted in found:
            continue
        found.add(wanted)
        for text in distribution(wanted.name).requires or []:
            one = Requirement(text)
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                waiting.append(one)
    return {canonicalize_name(one.name) for one in found}


class Environment:
    """A virtual environment that borrows some of this one's distributions, and no others."""

    def __init__(self, folder: Path, *names: str) -> None:
        assert run(sys.executable, "-m", "venv", "--without-pip", folder).returncode == 0
        self.bin = folder / "bin"
        self.site = next(folder.glob("lib/python*/site-packages"))
        for name in required(names):
            files = distribution(name).files or []
            for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
                source, target = Path(str(distribution(name).locate_file(top))), self.site / top
                if top.endswith(".dist-info"):
                    shutil.copytree(source, target)  # uv does not follow links to these
                elif not target.exists():
                    target.symlink_to(source)

    def install(self, *what: str | Path) -> None:
        """Without a registry or a cache: what it requires must be there already."""
        uv = Path(sys.executable).with_name("uv")
        done = run(uv, "pip", "install", "--offline", "--no-cache", "--python", self.bin / "python", *what)
        assert done.returncode == 0, done.stderr

    def keystone(self, *args: str) -> subprocess.CompletedProcess[str]:
        return run(self.bin / "keystone", *args, cwd=self.site)


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_products_wheel_is_small_and_holds_no_weights(wheels):
    names = names_in(wheels["product"])
    assert wheels["product"].stat().st_size < 1_000_000
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"keystone_robotics"}
    others = {
        name for name in names if name.startswith("keystone_robotics/") and Path(name).suffix not in (".py", ".md")
    }
    page = {f"keystone_robotics/report/page/{name}" for name in ("template.html", "page.css", "page.js")}
    assert others == {"keystone_robotics/py.typed", *page}
    recipes = {path.name for path in (ROOT / "docs" / "recipes").glob("*.md")}
    assert {Path(name).name for name in names if name.startswith("keystone_robotics/_recipes/")} == recipes


def test_the_studys_wheel_holds_its_policies_and_commands(wheels):
    names = names_in(wheels["study"])
    folder = ROOT / "study" / "src" / "keystone_study" / "policies" / "shipped"
    for policy in folder.iterdir():
        assert f"keystone_study/policies/shipped/{policy.name}/model.safetensors" in names
    with zipfile.ZipFile(wheels["study"]) as archive:
        entries = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert set(re.findall(r"^(\w+) = keystone_study\.cli", entries, re.MULTILINE)) == STUDY_COMMANDS


def test_the_plugins_wheel_has_the_name_that_lerobot_looks_for(wheels):
    assert wheels["plugin"].name.startswith("lerobot_policy_keystone-")
    assert "lerobot_policy_keystone/flag.py" in names_in(wheels["plugin"])
    assert not any(name.startswith(("keystone_robotics/", "tests/")) for name in names_in(wheels["plugin"]))


def test_the_product_runs_with_torch_and_numpy_alone(wheels, tmp_path):
    clean = Environment(tmp_path / "clean", "torch", "numpy")
    clean.install(wheels["product"])  # fails if it requires anything else
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in ("docs/start.md", "README.md")]
    start, readme = (re.search(r"```python\n(.*?)```", page, re.DOTALL)[1] for page in pages)
    checks = (
        "import importlib.util\n"
        "assert not any(map(importlib.util.find_spec, ['keystone_study', 'lerobot', 'numba', 'rich']))\n"
        "assert 'site-packages' in keystone.__file__\n"
        "assert keystone.Alarm and importlib.import_module('keystone_robotics.integrations')\n"
        "assert importlib.import_module('keystone_robotics.serve.model')  # without gymnasium\n"
        "assert any((robot_chunk == candidate).all() for candidate in candidates[:11])\n"
    )
    policy = (
        "class Policy:\n"
        "    num_inference_steps = 10\n"
        "    def encode(self, observation): return observation\n"
        "    def sample(self, context, noise): return context[:, None] + noise / self.num_inference_steps\n"
        "    def select_action(self, observation): return self.sample(self.encode(observation), torch.randn(1, 8, 7))[:, 0]\n"
        "policy = Policy()\n"
    )
    drawn = "policy.select_action(torch.zeros(1, 7))\nassert handle.stats['drawn'] == 16\n"
    done = run(clean.bin / "python", "-c", start + checks + policy + readme + drawn, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    refused = clean.keystone("demo")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert 'pip install "keystone-robotics[cli]"' in refused.stderr


def test_the_studys_commands_come_with_it(wheels, tmp_path):
    env = Environment(tmp_path / "cli", "torch", "numpy", "rich", "tyro")
    env.install(wheels["product"])
    missing = env.keystone("demo")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "pip install keystone-study" in missing.stderr
    env.install("--no-deps", wheels["study"])  # its simulators are not needed to list what it offers
    calls = "from keystone_robotics.cli import main; main(['recipes']); main(['roofline']); main(['--help'])"
    offered = run(env.bin / "python", "-c", calls, cwd=tmp_path).stdout
    assert "pi05-libero" in offered
    assert "Largest K within 5% of K = 1" in offered
    assert all(re.search(rf"^[│• ]+{name} ", offered, re.MULTILINE) for name in STUDY_COMMANDS), offered


def test_extras_install_from_a_folder_of_wheels_beside_a_package_named_keystone(wheels, tmp_path):
    """The assembler of keystone-engine owns the import name `keystone`; both work in one environment."""
    extras = {name: _extra(wheels["product"], name) for name in ("cli", "eval", "lerobot")}
    assert "lerobot-policy-keystone" in extras["lerobot"]
    borrowed = {"torch", "numpy", "lerobot", "keystone-engine", *extras["cli"], *extras["eval"]}
    env = Environment(tmp_path / "all", *borrowed - {"keystone-robotics"})
    folders = [argument for wheel in wheels.values() for argument in ("--find-links", wheel.parent)]
    env.install(*folders, "keystone-robotics[cli,eval,lerobot]")
    both = (
        "import importlib.metadata, keystone, keystone_robotics\n"
        "assembler = keystone.Ks(keystone.KS_ARCH_X86, keystone.KS_MODE_64)\n"
        "assert assembler.asm(b'inc rcx')[0] == [0x48, 0xFF, 0xC1]\n"
        "chunks = [[[0.0]], [[0.1]], [[5.0]]]\n"
        "import numpy; assert keystone_robotics.select(numpy.array(chunks), rule='medoid').index == 1\n"
        "versions = {importlib.metadata.version(name) for name in ('keystone-robotics', 'lerobot_policy_keystone')}\n"
        "assert versions == {keystone_robotics.__version__}, versions\n"
    )
    done = run(env.bin / "python", "-c", both, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert env.keystone("--version").stdout.startswith("keystone ")


def _extra(wheel: Path, extra: str) -> set[str]:
    """The distributions that an extra of a wheel requires by name."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    lines = map(Requirement, re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE))
    return {canonicalize_name(one.name) for one in lines if one.marker and one.marker.evaluate({"extra": extra})}


def test_all_distributions_have_one_version_and_one_repository(wheels):
    about = {}
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            about[name] = archive.read(next(one for one in names if one.endswith("METADATA"))).decode()
        assert any(one.endswith("licenses/LICENSE") for one in names)
        assert any(one.endswith("/py.typed") for one in names)
        assert not re.findall(r"\]\((?!https?:|#)[^)]*\)", about[name]), "PyPI has no files beside the README"
    urls = [re.findall(r"^Project-URL: (.*)$", text, re.MULTILINE) for text in about.values()]
    assert urls[0] == urls[1] == urls[2]
    home = next(url.partition(", ")[2] for url in urls[0] if url.startswith("Homepage"))
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"repository-code: {home}\n" in citation
    assert f"repo_url: {home}\n" in (ROOT / "mkdocs.yml").read_text()
    assert f"[Repository]({home})" in (ROOT / "README.md").read_text()
    versions = {re.search(r"^Version: (.*)$", text, re.MULTILINE)[1] for text in about.values()}
    (version,) = versions
    assert f"\nversion: {version}\n" in citation
    assert re.search(
        rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    license_text = (ROOT / "LICENSE").read_text()
    assert all((project / "LICENSE").read_text() == license_text for project in PROJECTS.values())
