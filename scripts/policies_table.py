"""Writes the table in docs/policies.md from the adapters: python scripts/policies_table.py."""

from pathlib import Path

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families import ADAPTERS

PAGE = Path(__file__).parents[1] / "docs" / "policies.md"
BEGIN, END = "<!-- policies:begin -->\n", "<!-- policies:end -->\n"
LEROBOT = "0.6.1"


def tables() -> str:
    """The policies that KeyStone is attached to, then those it refuses."""
    lerobot = [adapter for adapter in ADAPTERS.values() if adapter.project == "LeRobot"]
    supported = [adapter for adapter in lerobot if not adapter.refusal]
    refused = [adapter for adapter in lerobot if adapter.refusal]
    lines = ["| policy type | policy | what the K candidates share | LeRobot | on a GPU |", "|---|---|---|---|---|"]
    lines += [f"| `{a.name}` | {title(a)} | {a.shared_context} | {LEROBOT} | no |" for a in supported]
    lines += ["", "Refused, with the reason that the error gives:", "", "| policy type | reason |", "|---|---|"]
    lines += [f"| `{a.name}` | {a.refusal} |" for a in refused]
    others = [adapter for adapter in ADAPTERS.values() if adapter.project not in ("LeRobot", "any")]
    lines += ["", "In their own repositories ([what was run](upstream.md)):", ""]
    lines += ["| adapter | policy | what the K candidates share | to be told | on a GPU |", "|---|---|---|---|---|"]
    lines += [f"| `{a.name}` | {title(a)} | {a.shared_context} | {told(a)} | no |" for a in others]
    return "\n".join(lines) + "\n"


def told(adapter: Adapter) -> str:
    """Whether the caller may have to say what of a chunk is real."""
    return "`space=` (dims, steps), unless the policy knows" if adapter.padding_reason else "–"


def title(adapter: object) -> str:
    """The first line of the adapter's docstring."""
    return (type(adapter).__doc__ or "").strip().splitlines()[0].rstrip(".")


def page() -> str:
    """The whole page with the tables as they should be."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + tables() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
