"""The command ``keystone demo``."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import keystone_robotics as keystone
from keystone_robotics.cli import main
from keystone_robotics.environments import find_benchmark
from keystone_robotics.evaluate.branch import Brancher, Branches
from keystone_study.report.film import BANNER

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


OPTIONS = ("--episodes", 1, "--workers", 1)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str], Path]:
    """Two calls of the command, the first where MuJoCo cannot render, and the folder: printed texts and pages."""
    folder = tmp_path_factory.mktemp("demo") / "new" / "folder"
    printed, pages = [], []
    branched: dict[tuple[int, int, int], Branches] = {}
    branch = Brancher.branch

    def branch_once(brancher: Brancher, repeat: int, episode: int, rounds: Any, number: int) -> Branches:
        """The same in both calls, and 16 episodes of 500 steps."""
        if (repeat, episode, number) not in branched:
            branched[repeat, episode, number] = branch(brancher, repeat, episode, rounds, number)
        return branched[repeat, episode, number]

    find_benchmark("metaworld").tasks()  # imports MuJoCo, which takes its backend from the variable once
    for backend in ("disabled", os.environ.get("MUJOCO_GL", "egl")):
        written = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(written):
            patch.setattr("keystone_study.report.demo.TRIED", 1)  # one round is enough to show
            patch.setattr(Brancher, "branch", branch_once)
            patch.setattr("keystone_study.report.demo.EVERY", 40)  # and a frame takes 0.3 s without a GPU
            patch.setattr("keystone_robotics.report.page.films.FRAMES", 8)
            patch.setenv("COLUMNS", "100")
            patch.setenv("MUJOCO_GL", backend)
            assert main(["demo", "--out", str(folder), *map(str, OPTIONS)]) == 0
        printed.append(written.getvalue())
        pages.append((folder / "demo" / "index.html").read_text())
    return printed, pages, folder / "demo"


def test_it_compares_the_arms(demo: tuple[list[str], list[str], Path]) -> None:
    (printed, again), _, folder = demo
    first, control, mean, many = json.loads((folder / "summary.json").read_text())
    arms = [one["arm"] for one in (first, control, mean, many)]
    assert arms == ["first", "first:steps=2", "core-mean:k=16,steps=2", "keystone:k=16"]
    assert first["episodes"] == many["episodes"] == 6
    assert many["pairing"] == "paired: the hashes of 6 initial states agree"
    assert f"{100 * many['rate']:.1f} [" in printed
    assert str(folder / "index.html") in printed.replace("\n", "")
    assert "= 24 episodes, 0 already stored" in printed
    assert "= 24 episodes, 24 already stored" in again


def test_without_graphics_it_says_so_and_goes_on(demo: tuple[list[str], list[str], Path]) -> None:
    (printed, again), (page, _), _ = demo
    assert "cannot render images" in printed
    assert "cannot render images" not in again
    assert "cannot render images" in page
    assert "data:image/png;base64" in page
    assert "data:image/gif" not in page


def test_the_page_holds_everything_in_itself(demo: tuple[list[str], list[str], Path]) -> None:
    _, (_, page), _ = demo
    for many in ("keystone:k=16", "core-mean:k=16,steps=2"):
        assert f"{many} against first:steps=2: " in page  # the control that costs nothing
    assert "keystone:k=16 against core-mean" not in page
    assert "keystone eval --policy YOUR_POLICY" in page
    assert "data:image/png;base64" in page  # the candidates of one round
    assert "data:image/gif;base64" in page  # the episode
    assert "data:image/webp;base64" in page  # a film that follows the rounds
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)


def test_the_pictures_show_something(demo: tuple[list[str], list[str], Path]) -> None:
    with Image.open(demo[2] / "episode.gif") as film:
        assert film.n_frames > 5
        assert film.size == (512, 256 + BANNER)
        first = np.asarray(film.convert("RGB"), float)
        film.seek(film.n_frames - 1)
        assert np.abs(np.asarray(film.convert("RGB"), float) - first).mean() > 1.0  # the arm moved
    with Image.open(demo[2] / "round.png") as figure:
        assert len(set(figure.convert("RGB").resize((60, 30)).get_flattened_data())) > 20


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert main(["demo", "--out", str(taken)]) == 2
    assert capsys.readouterr() == ("", f"keystone: --out {taken} is a file: expected a folder\n")
    assert taken.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["demo", "--out", str(tmp_path / "taken" / "below")]) == 2
    assert "cannot write to" in capsys.readouterr().err


def test_without_a_package_it_names_the_extra_and_writes_nothing(tmp_path: Path) -> None:
    result = run("demo", "--out", tmp_path / "out", PYTHONPATH=hidden(tmp_path, "metaworld"))
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


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"keystone {keystone.__version__}\n"


def test_an_unknown_option_is_refused_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--ot", "x"])
    assert "--out" in capsys.readouterr().err
