"""The command ``keystone demo``: started as a user starts it, and in this process where only the wording matters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import keystone
from keystone.cli import main

COMMAND = Path(sys.executable).with_name("keystone")


def run(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", **environment}
    return subprocess.run(
        [COMMAND, *map(str, args)], env=environment, capture_output=True, text=True, timeout=120, check=False
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
    return run("demo", "--out", out), out


def test_it_says_what_was_chosen_and_what_the_mean_would_do(
    demo: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    result, _ = demo
    assert result.returncode == 0, result.stderr
    two, one = (
        next(line for line in result.stdout.splitlines() if start in line) for start in ("two minds", "one mind")
    )
    assert "keystone" in two
    assert "69%" in two  # eleven of sixteen
    assert "clears by" in two
    assert "hits by" in two
    assert "100%" in one
    assert "hits by" not in one


def test_it_writes_the_figure_twice(demo: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    result, out = demo
    png, svg = (out / "demo.png").read_bytes(), (out / "demo.svg").read_text()
    assert png.startswith(b"\x89PNG")
    assert 20_000 < len(png) < 150_000  # not blank, and small enough for a README
    assert svg.rstrip().endswith("</svg>")
    assert sorted(path.name for path in out.iterdir()) == ["demo.png", "demo.svg"]
    assert str(out / "demo.png") in result.stdout.replace("\n", "")


def test_the_same_figure_every_time(demo: tuple[subprocess.CompletedProcess[str], Path], tmp_path: Path) -> None:
    _, out = demo
    assert main(["demo", "--out", str(tmp_path)]) == 0
    for name in ("demo.png", "demo.svg"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


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
    assert "cannot write to --out" in capsys.readouterr().err


def test_without_matplotlib_it_names_the_extra_and_writes_nothing(tmp_path: Path) -> None:
    path = hidden(tmp_path, "matplotlib")
    reason = refused(run("demo", "--out", tmp_path / "out", PYTHONPATH=path))
    assert reason == 'keystone: figures need matplotlib: pip install "keystone-robotics[plot]"'
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
