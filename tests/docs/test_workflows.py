"""What the workflows call exists here: make targets, scripts, and their arguments."""

import re
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


def test_the_projects_of_the_weekly_run_are_known():
    (projects,) = (
        about["strategy"]["matrix"]["project"]
        for about in yaml.safe_load((ROOT / ".github" / "workflows" / "weekly.yml").read_text())["jobs"].values()
        if "strategy" in about
    )
    known = re.findall(
        r"^  ([\w.-]+)\) tests=(\S+) ;;", (ROOT / "scripts" / "test_upstream_newest.sh").read_text(), re.M
    )
    assert projects == [name for name, _ in known]
    assert all((ROOT / tests).is_file() for _, tests in known)


def test_the_runner_and_the_workflow_run_the_same_target():
    assert re.search(r"^exec make (\S+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)[1] in TARGETS
