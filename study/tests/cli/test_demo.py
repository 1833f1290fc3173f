"""The command ``keystone demo``: started as a user starts it, and in this process where only the wording matters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keystone_robotics as keystone
from keystone_robotics.cli import main
from keystone_robotics.report.film import BANNER

pytestmark = pytest.mark.xdist_group("demo")  # which takes its time, and need not run twice

COMMAND = Path(sys.executable).with_name("keystone")


def run(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", **environment}
    return subprocess.run(
        [COMMAND, *map(str, args)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def hidden(folder: Path, package: str) -> str:
    """A PYTHONPATH on which importing a package fails, as where it is not installed."""
    (folder / f"{package}.py").write_text(
        f"raise ModuleNotFoundError({f'No module named {package!r}'!r}, name={package!r})\n"
    )
    return str(folder)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    return run("demo", "--out", out, "--episodes", 2, "--workers", 1), out / "demo"


def test_it_compares_both_arms(demo: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    result, folder = demo
    assert result.returncode == 0, result.stderr
    first, control, mean, many = json.loads((folder / "summary.json").read_text())
    arms = [one["arm"] for one in (first, control, mean, many)]
    assert arms == ["first", "first:temperature=0.6", "core-mean:k=16", "keystone:k=16"]
    assert first["episodes"] == many["episodes"] == 12
    assert many["pairing"] == "paired: the hashes of 12 initial states agree"
    assert f"{100 * many['rate']:.1f} [" in result.stdout
    assert str(folder / "index.html") in result.stdout.replace("\n", "")


def test_the_page_holds_everything_in_itself(demo: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    page = (demo[1] / "index.html").read_text()
    for many in ("keystone:k=16", "core-mean:k=16"):
        assert f"{many} against first:temperature=0.6: " in page  # the control that costs nothing
    assert "keystone:k=16 against core-mean" not in page
    assert "Of 12 episodes" in page
    assert "data:image/png;base64" in page  # the candidates of one round
    assert "data:image/gif;base64" in page  # the episode
    assert not re.findall(r'(?:src|href)="(?!data:)', page)


def test_the_pictures_show_something(demo: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    with Image.open(demo[1] / "episode.gif") as film:
        assert film.n_frames > 5
        assert film.size == (512, 256 + BANNER)
        first = np.asarray(film.convert("RGB"), float)
        film.seek(film.n_frames - 1)
        assert np.abs(np.asarray(film.convert("RGB"), float) - first).mean() > 1.0  # the arm moved
    with Image.open(demo[1] / "round.png") as figure:
        assert len(set(figure.convert("RGB").resize((60, 30)).get_flattened_data())) > 20


def test_run_again_it_has_nothing_to_roll_out(demo: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    before = (demo[1] / "summary.json").read_text()
    again = run("demo", "--out", demo[1].parent, "--episodes", 2, "--workers", 1)
    assert again.returncode == 0, again.stderr
    assert (demo[1] / "summary.json").read_text() == before  # latency and all: nothing was measured anew


def test_without_a_gl_it_says_so_and_goes_on(tmp_path: Path) -> None:
    """As on a machine without the libraries: MuJoCo itself would fail when it is imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes.util\n"
        "find = ctypes.util.find_library\n"
        "ctypes.util.find_library = lambda name: None if name in ('EGL', 'OSMesa', 'GL') else find(name)\n"
    )
    options = ("--out", tmp_path, "--episodes", 1, "--workers", 1)
    result = run("demo", *options, MUJOCO_GL="egl", PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert "cannot render images" in result.stdout
    page = (tmp_path / "demo" / "index.html").read_text()
    assert "cannot render images" in page
    assert "data:image/gif" not in page


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal."""
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert refused(run("demo", "--out", taken)) == f"keystone: --out {taken} is a file: give a folder"
    assert taken.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["demo", "--out", str(tmp_path / "taken" / "below")]) == 2
    assert "cannot write to" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["metaworld", "gymnasium"])
def test_without_a_package_it_names_the_extra_and_writes_nothing(package: str, tmp_path: Path) -> None:
    result = run("demo", "--out", tmp_path / "out", PYTHONPATH=hidden(tmp_path, package))
    assert result.returncode == 2
    assert result.stderr.startswith("keystone: ")
    assert result.stderr.endswith('pip install "keystone-robotics[eval]"\n')
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("package", ["tyro.extras", "rich"])
def test_without_the_command_line_packages_it_names_the_extra(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # makes importing it fail
    assert main(["demo"]) == 2
    assert capsys.readouterr().err.endswith('pip install "keystone-robotics[cli]"\n')


def test_version() -> None:
    assert run("--version").stdout == f"keystone {keystone.__version__}\n"


def test_help_lists_the_commands() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "demo" in result.stdout


def test_an_unknown_option_is_refused_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--ot", "x"])
    assert "--out" in capsys.readouterr().err
