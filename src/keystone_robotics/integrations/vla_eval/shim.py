"""The shim that vla-eval starts instead of a server script: its requirements plus KeyStone, then the script itself."""

from __future__ import annotations

import json
import os
import re
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import keystone_robotics as keystone

PACKAGE = "keystone-robotics"

#: PEP 723: requirements of a script in comment lines.
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")

_SHIM = '''{header}"""Serves {name} with KeyStone. Written by `keystone vla-eval`, which may overwrite it."""

from keystone_robotics.integrations.vla_eval import serve_script

serve_script({script!r})
'''


def has_requirements(script: Path) -> bool:
    """Whether a script has a PEP 723 header."""
    return _BLOCK.search(script.read_text(encoding="utf-8")) is not None


def shim(script: Path) -> str:
    """The text of the shim of a server script; without a header if the script has none."""
    header = ""
    match = _BLOCK.search(script.read_text(encoding="utf-8"))
    if match:
        lines = [line[2:] for line in match["content"].splitlines()]
        requirement, source = requirement_of_keystone()
        content = require("\n".join(lines), requirement, source, script.parent.resolve())
        header = "\n".join(["# /// script", *(f"# {line}".rstrip() for line in content.splitlines()), "# ///", ""])
    return _SHIM.format(header=header, name=script.name, script=str(script.resolve()))


def require(content: str, requirement: str, source: str | None, folder: Path) -> str:
    """Add a requirement to a header (TOML), and make its relative paths absolute.

    >>> print(require('dependencies = ["torch"]', "keystone-robotics", '{ path = "/k" }', Path("/")))
    dependencies = [
        "keystone-robotics", "torch"]
    <BLANKLINE>
    [tool.uv.sources]
    keystone-robotics = { path = "/k" }
    """
    content = re.sub(
        r'(\bpath\s*=\s*)(["\'])(.+?)\2',
        lambda found: found[1] + json.dumps(str((folder / found[3]).resolve())),
        content,
    )
    quoted = json.dumps(requirement)
    content, found = re.subn(
        r"(?m)^(dependencies\s*=\s*\[)", lambda found: f"{found[1]}\n    {quoted}, ", content, count=1
    )
    if not found:
        content = f"dependencies = [{quoted}]\n{content}"
    if source is None:
        return content
    line = f"{PACKAGE} = {source}"
    content, found = re.subn(r"(?m)^\[tool\.uv\.sources\]$", lambda table: f"{table[0]}\n{line}", content, count=1)
    return content if found else f"{content}\n\n[tool.uv.sources]\n{line}"


def requirement_of_keystone() -> tuple[str, str | None]:
    """The requirement that installs this KeyStone in another environment, and its uv source if it is not from an index."""
    root = Path(keystone.__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file():  # a clone
        return PACKAGE, f"{{ path = {json.dumps(str(root))}, editable = true }}"
    try:
        origin = json.loads(Distribution.from_name(PACKAGE).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    if "vcs_info" in origin:
        info = origin["vcs_info"]
        return f"{PACKAGE} @ {info['vcs']}+{origin['url']}@{info['commit_id']}", None
    if "url" in origin:
        return f"{PACKAGE} @ {origin['url']}", None
    return f"{PACKAGE}=={keystone.__version__}", None


def cache() -> Path:
    """Folder of shims; stable, because uv caches one environment per script path."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "keystone" / "vla-eval"
