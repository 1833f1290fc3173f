"""Puts data, script and style into one file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import write_file

#: In JSON: an escaped character, or the code of a control or of a mark that turns the reading direction.
UNPRINTABLE = re.compile(r"\\(?:u(00[01][0-9a-f]|061c|200[ef]|202[a-e]|206[6-9])|.)")


def render(data: Mapping[str, Any]) -> str:
    """The page. Its content security policy allows this script and this style, and nothing from a network."""
    here = files("keystone_robotics.report.page")
    template, style, script = (
        here.joinpath(name).read_text("utf-8") for name in ("template.html", "page.css", "page.js")
    )
    parts = {
        "TITLE": html.escape(data["headline"]),
        "POLICY": f"default-src 'none'; img-src data:; style-src {content_hash(style)}; script-src {content_hash(script)}",
        "STYLE": style,
        "SCRIPT": script,
        "DATA": as_json(data),
    }
    return re.sub("@@([A-Z]+)@@", lambda found: parts[found[1]], template)  # one pass: inserted text is not searched


def as_json(data: Any) -> str:
    r"""JSON that is safe inside a script element of HTML, whatever its strings hold.

    Characters that turn the reading direction or do not print are shown as escapes, line breaks apart; numbers that are not
    finite become null.

    >>> as_json(["</script><!--", float("inf")])
    '["\\u003c/script\\u003e\\u003c!--",null]'
    >>> print(json.loads(as_json("push \u202egnp.live \\u202e")))
    push \u202egnp.live \u202e
    """
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    text = UNPRINTABLE.sub(lambda found: rf"\\u{found[1]}" if found[1] else found[0], text)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def content_hash(text: str) -> str:
    """The source of a content security policy that allows this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def write_page(path: Path, data: Mapping[str, Any]) -> int:
    """Write the page; returns its size in bytes.

    Raises:
        KeystoneError: if it cannot be written.
    """
    if path.is_dir():
        raise KeystoneError(f"--out {path} is a folder: expected a file, such as {path / 'report.html'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KeystoneError(f"cannot write {path}: {error.strerror}") from None
    write_file(path, render(data))
    return path.stat().st_size
