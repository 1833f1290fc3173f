"""Writes the table in docs/policies.md from the adapters: python scripts/policies_table.py."""

import json
from pathlib import Path
from typing import Any

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families import ADAPTERS

PAGE = Path(__file__).parents[1] / "docs" / "policies.md"
BEGIN, END = "<!-- policies:begin -->\n", "<!-- policies:end -->\n"
LEROBOT = "0.6.1"
RESULTS = Path(__file__).parents[1] / "upstream" / "results.json"

#: The recorded runs of an adapter.
TESTED = {
    "openpi": ("openpi",),
    "openpi-jax": ("openpi",),
    "isaac-groot": ("Isaac-GR00T-N1.5", "Isaac-GR00T-N1.6", "Isaac-GR00T-N1.7", "Isaac-GR00T-2ea60d6"),
    "starvla": ("starVLA", "starVLA-eaa51c4", "starVLA-23f3788"),
    "x-vla": ("X-VLA", "X-VLA-d622be6"),
    "fast-wam": ("FastWAM",),
    "diffusion-policy": ("diffusion_policy", "3D-Diffusion-Policy"),
    "cogact": ("CogACT", "InternVLA-M1", "dexbotic"),
    "rdt": ("RoboticsDiffusionTransformer",),
    "h-rdt": ("H_RDT",),
    "openvla-oft": ("openvla-oft",),
    "cosmos-policy": ("cosmos-policy",),
    "dreamzero": ("dreamzero",),
}

#: Recipes of an adapter, in docs/recipes.
RECIPES = {
    "pi05": ("pi05-libero",),
    "smolvla": ("smolvla-libero",),
    "openpi": ("pi05-libero-openpi",),
    "openpi-jax": ("pi05-libero-openpi",),
    "isaac-groot": ("groot-widowx", "groot-google-robot"),
    "starvla": ("starvla-widowx", "starvla-pi-libero"),
    "x-vla": ("xvla-widowx",),
    "fast-wam": ("fastwam-robotwin",),
    "cogact": ("cogact-widowx", "dexbotic-libero"),
    "rdt": ("rdt-maniskill",),
    "h-rdt": ("h-rdt-robotwin",),
    "cosmos-policy": ("cosmos-policy-libero",),
}

#: What of a project ran, where it is not the whole policy after its encoders.
SCOPES = {
    "openvla-oft": "without its image encoders",
    "cosmos-policy": "its attention in torch, and torch's kernels in place of TransformerEngine's",
    "dreamzero": "its head, schedulers and transformer, with small stand-ins for its text, image and video encoders",
}


def tables() -> str:
    """Supported policies, then refused ones."""
    lerobot = [adapter for adapter in ADAPTERS.values() if adapter.project == "LeRobot"]
    supported = [adapter for adapter in lerobot if not adapter.refusal]
    refused = [adapter for adapter in ADAPTERS.values() if adapter.refusal]
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
    others = [a for a in ADAPTERS.values() if a.project not in ("LeRobot", "any") and not a.refusal]
    lines += ["", "In their own repositories ([what was run](upstream.md)):", ""]
    lines += [
        "| adapter | policy | what the K candidates share | denoising steps | `steps=` | required option | on a GPU |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{a.name}` | {title(a)} | {a.shared_context} | {a.steps_by_default} | {changeable(a)} | {required_option(a)} | no |"
        for a in others
    ]
    return "\n".join(lines + matrix()) + "\n"


def matrix() -> list[str]:
    """Which model in whose code was tested how: from the adapters, and from the runs that were recorded."""
    lines = ["", "By model, code base and how it was tested:", ""]
    lines += ["| adapter | code base | tested | [`compile=`](fast.md#compiling) | recipe |", "|---|---|---|---|---|"]
    runs = json.loads(RESULTS.read_text())
    for adapter in ADAPTERS.values():
        if adapter.project == "any":
            continue
        if adapter.refusal:
            how = "refused, with the reason"
        elif adapter.project == "LeRobot":
            how = f"LeRobot {LEROBOT}'s own classes, tiny random weights, in `tests/`"
        else:
            run = [recorded(name, runs[name]) for name in TESTED.get(adapter.name, ()) if name in runs]
            how = "; ".join(run) or "a small model of ours with the same methods, in `tests/`; its own code was not run"
        recipes = ", ".join(f"[{name}](recipes/{name}.md)" for name in RECIPES.get(adapter.name, ()))
        compiles = "yes" if adapter.compiles else "–" if adapter.refusal else "refused"
        lines.append(f"| `{adapter.name}` | {adapter.project} | {how} | {compiles} | {recipes or '–'} |")
    return lines


def recorded(name: str, run: dict[str, Any]) -> str:
    """One recorded run of a project's own code."""
    scope = f", {SCOPES[name]}" if name in SCOPES else ""
    return f"{name} {run['commit']}: {run['passed']} of {run['passed'] + run['failed']} tests{scope}"


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
