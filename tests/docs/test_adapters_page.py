"""The example of docs/adapters.md, a new version of a model, is a diff of the code as it is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_diff_applies_to_the_adapter():
    ((diff),) = re.findall(r"^```diff\n(.*?)^```", (ROOT / "docs/adapters.md").read_text(), re.DOTALL | re.MULTILINE)
    before = "".join(line[1:] or "\n" for line in diff.splitlines(keepends=True) if not line.startswith("+"))
    assert before in (ROOT / "src/keystone_robotics/sample/families/groot/isaac.py").read_text()
