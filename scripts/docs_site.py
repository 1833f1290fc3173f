"""Hooks of mkdocs: the home page, the page of the command line, and links to files outside of docs/.

The sources link as on GitHub, relative to their own place in the repository. A link to a file outside of docs/ becomes a
link to the repository, an image there is copied into the site, and one to a missing file fails the build.
"""

from __future__ import annotations

import logging
import posixpath
import re
import warnings
from argparse import SUPPRESS, Action
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import tomllib
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)(\[[^\]]*\])\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```.*?^```|(?: {4}[^\n]*\n)+)", re.DOTALL | re.MULTILINE)
#: Where pages stand in the repository that are not in docs/.
ELSEWHERE = {"index.md": "README.md"}
log = logging.getLogger("mkdocs.hooks.docs_site")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page, the page of the command line, and images outside of docs/."""
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference/cli.md", content="\n".join(command_line())))
    pages = [(_source_of(one.src_uri), one.content_string) for one in files.documentation_pages()]
    for image in {found for source, text in pages for found in _images_outside(source, text)}:
        files.append(File.generated(config, image, abs_src_path=str(ROOT / image)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of one page, as the site needs them."""
    source = _source_of(page.file.src_uri)

    def rewritten(found: re.Match[str]) -> str:
        mark, text, target, anchor = found.groups(default="")
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = path.removeprefix("docs/") if path.startswith("docs/") else path if mark else ""
        if inside and files.get_file_from_path(inside) is not None:
            return f"{mark}{text}({posixpath.relpath(inside, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"
        if not (ROOT / path).exists():
            log.warning("%s: link to %s, which does not exist", source, path)
            return found[0]
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{mark}{text}({config.repo_url.rstrip('/')}/{kind}/main/{path}{anchor})"

    return _outside_of_code(markdown, lambda prose: LINK.sub(rewritten, prose))


def _source_of(src_uri: str) -> str:
    return ELSEWHERE.get(src_uri, f"docs/{src_uri}")


def _images_outside(source: str, text: str) -> Iterator[str]:
    for mark, _, target, _ in LINK.findall(text):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if mark and ":" not in target and not path.startswith("docs/") and (ROOT / path).is_file():
            yield path


def _outside_of_code(markdown: str, change: Any) -> str:
    parts = FENCE.split(markdown)  # code at odd places
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


def command_line() -> Iterator[str]:
    """The page of the command line, from the parsers of all commands."""
    from keystone_robotics.cli import COMMANDS

    study = tomllib.loads((ROOT / "study" / "pyproject.toml").read_text())["project"]["entry-points"]
    yield "# The command line\n"
    yield "Made from the commands' own parsers: `keystone COMMAND --help` prints the same."
    yield "Options with several values take them one after the other: `--tasks push-v3 hammer-v3`.\n"
    for name, place in {**COMMANDS, **study["keystone_robotics.commands"]}.items():
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        yield f"## `keystone {name}`\n"
        if place.startswith("keystone_study"):
            yield "Comes with `keystone-study`.\n"
        if not hasattr(command, "_subcommands"):
            yield from _describe(command)
            continue
        yield f"{command.__doc__}\n"
        for inner, registered in command._subcommands.items():
            yield f"### `keystone {name} {inner}`\n"
            yield from _describe(registered.target)


def _describe(command: Any) -> Iterator[str]:
    from tyro.extras import get_parser

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of get_parser; docs/requirements.txt pins tyro
        parser: Any = get_parser(command)
    yield f"{parser.description}\n"
    actions = [one for one in parser._actions if one.help != SUPPRESS and "--help" not in one.option_strings]
    if actions:
        yield "| argument | meaning |\n|---|---|"
        yield from (f"| {_usage(one)} | {_cell(one.help or '')} |" for one in actions)
        yield ""


def _usage(action: Action) -> str:
    if not action.option_strings:
        return f"`{action.dest.rpartition('.')[2].upper()}`"
    flags = [flag for flag in action.option_strings if not flag.startswith("--no-")]
    value = action.metavar if action.nargs != 0 and action.metavar is not None else ""
    value = re.sub(r"\{None\}\|", "", " ".join(value) if isinstance(value, tuple) else value)
    return _cell(" ".join(f"`{part}`" for part in (", ".join(flags), re.sub(r"^\{\[(.*)\]\}$", r"\1", value)) if part))


def _cell(text: str) -> str:
    text = " ".join((text % {} if "%" in text else text).split())
    text = re.sub(r" ?\(default: (None|False)?\)$", "", text)
    return text.replace("|", "\\|").replace("<", "&lt;")
