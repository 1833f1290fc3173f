"""Writes the table in docs/policies.md from the adapters: python scripts/policies_table.py."""

from pathlib import Path

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families import ADAPTERS

PAGE = Path(__file__).parents[1] / "docs" / "policies.md"
BEGIN, END = "<!-- policies:begin -->\n", "<!-- policies:end -->\n"
LEROBOT = "0.6.1"


def tables() -> str:
    """Supported policies, then refused ones."""
    lerobot = [adapter for adapter in ADAPTERS.values() if adapter.project == "LeRobot"]
    supported = [adapter for adapter in lerobot if not adapter.refusal]
    refused = [adapter for adapter in lerobot if adapter.refusal]
    lines = [
        "| policy type | policy | what the K candidates share | denoising steps | `steps=` | LeRobot | on a GPU |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{a.name}` | {title(a)} | {a.shared_context} | {a.steps_by_default} | {changeable(a)} | {LEROBOT} | no |"
        for a in supported
    ]
    lines += ["", "Refused, with the reason given in the error:", "", "| policy type | reason |", "|---|---|"]
    lines += [f"| `{a.name}` | {a.refusal} |" for a in refused]
    others = [adapter for adapter in ADAPTERS.values() if adapter.project not in ("LeRobot", "any")]
    lines += ["", "In their own repositories ([what was run](upstream.md)):", ""]
    lines += [
        "| adapter | policy | what the K candidates share | denoising steps | `steps=` | required option | on a GPU |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{a.name}` | {title(a)} | {a.shared_context} | {a.steps_by_default} | {changeable(a)} | {required_option(a)} | no |"
        for a in others
    ]
    return "\n".join(lines) + "\n"


def changeable(adapter: Adapter) -> str:
    """Whether ``steps=`` can change the number of denoising steps, and how far."""
    if type(adapter).refuse_steps is not Adapter.refuse_steps:
        return "yes, up to those of the noise schedule"
    return "yes" if adapter.steps or adapter.steps_argument else "no"


def required_option(adapter: Adapter) -> str:
    """The option that gives the real part of a chunk, if the policy may not have it."""
    return "`space=` (dims, steps), unless the policy has them" if adapter.padding_reason else "–"


def title(adapter: object) -> str:
    """The first line of the adapter's docstring."""
    return (type(adapter).__doc__ or "").strip().splitlines()[0].rstrip(".")


def page() -> str:
    """The page with regenerated tables."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + tables() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
