"""What the workflows call exists here: make targets, scripts, and their arguments."""

import os
import re
import runpy
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps():
    for path in FILES:
        for job, about in yaml.safe_load(path.read_text())["jobs"].items():
            for number, step in enumerate(about["steps"]):
                if "run" in step:
                    yield pytest.param(about, step["run"], id=f"{path.stem}-{job}-{number}")


@pytest.mark.parametrize(("job", "command"), list(steps()))
def test_a_step_calls_what_is_there(job, command):
    words = command.split()
    if words[0] == "make":
        assert words[1] in TARGETS
        recipe = subprocess.run(["make", "--dry-run", *words[1:2]], cwd=ROOT, capture_output=True, text=True)
        assert recipe.returncode == 0, recipe.stderr
        for script in re.findall(r"scripts/\w+\.sh", recipe.stdout):
            assert (ROOT / script).stat().st_mode & 0o100, script
    elif words[0].startswith((".ci/", "scripts/")):
        assert (ROOT / words[0]).stat().st_mode & 0o100
    else:
        assert words[0] in ("sudo", "gh"), f"{command}: a make target would run on everybody's machine, too"


@pytest.mark.parametrize(("job", "command"), list(steps()))
def test_a_step_has_the_tools_that_its_script_asks_for(job, command):
    """`make setup` installs uv itself; scripts that do not call it need the one of the machine."""
    words = command.split()
    recipe = subprocess.run(["make", "--dry-run", *words[1:2]], cwd=ROOT, capture_output=True, text=True).stdout
    texts = [
        (ROOT / script).read_text() for script in re.findall(r"scripts/\w+\.sh", recipe if words[0] == "make" else "")
    ]
    if any("uv was not found" in text for text in texts):
        assert any(step.get("uses", "").startswith("astral-sh/setup-uv@") for step in job["steps"])


@pytest.fixture
def project(tmp_path):
    """A folder with ``scripts/upstream.sh``, one known project with one commit, and a ``uv`` that does nothing and fails."""
    for path, text in {
        "scripts/upstream.sh": (ROOT / "scripts" / "upstream.sh").read_text(),
        "upstream/checkouts.py": f"print('{tmp_path}/theirs', 'HEAD', 'test_it', 'torch', sep='\\n')",
        ".venv/bin/uv": "#!/bin/sh\nexit 3",
        ".python-version": "3.12",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    return tmp_path


def upstream(project, *words, checkouts):
    environment = {**os.environ, "KEYSTONE_UPSTREAM": str(checkouts), "PATH": os.defpath}
    command = [project / "scripts" / "upstream.sh", "it", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def theirs(project):
    commit = ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "first"]
    for words in (["init", "--quiet"], commit):
        subprocess.run(["git", *words], cwd=(project / "theirs"), check=True)


def test_a_checkout_is_whole_or_not_there_and_the_log_says_why(project):
    checkouts = project / "checkouts"
    assert upstream(project, checkouts=checkouts).returncode not in (0, 3)
    assert list(checkouts.iterdir()) == []
    assert "theirs" in (project / "out" / "newest.log").read_text()
    (project / "theirs").mkdir()
    theirs(project)
    assert upstream(project, checkouts=checkouts).returncode == 3  # as far as uv
    assert (checkouts / "it" / ".git").is_dir()
    (project / ".venv" / "bin" / "uv").unlink()
    assert "uv was not found" in upstream(project, checkouts=checkouts).stdout


def test_the_newest_commit_leaves_ones_own_checkout_alone(project):
    own = project / "checkouts" / "it" / "own.py"
    own.parent.mkdir(parents=True)
    own.write_text("x = 1")
    (project / "theirs").mkdir()
    theirs(project)
    assert upstream(project, "newest", checkouts=project / "checkouts").returncode == 3
    assert own.read_text() == "x = 1"


def test_the_projects_of_the_weekly_run_are_known():
    (projects,) = (
        about["strategy"]["matrix"]["project"]
        for about in yaml.safe_load((ROOT / ".github" / "workflows" / "weekly.yml").read_text())["jobs"].values()
        if "strategy" in about
    )
    known = runpy.run_path(str(ROOT / "upstream" / "checkouts.py"))["CHECKOUTS"]
    # Other commits of a repository are older than the newest.
    assert {known[name].repository for name in projects} == {one.repository for one in known.values()}
    assert len(projects) == len({known[name].repository for name in projects})


def test_every_checkout_has_tests_and_a_whole_commit():
    for name, one in runpy.run_path(str(ROOT / "upstream" / "checkouts.py"))["CHECKOUTS"].items():
        assert (ROOT / "upstream" / f"{one.tests}.py").is_file(), name
        assert re.fullmatch("[0-9a-f]{40}", one.commit), f"{name}: git fetches a commit by all its digits only"


def test_the_runner_and_the_workflow_run_the_same_target():
    assert re.search(r"^exec make (\S+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)[1] in TARGETS
