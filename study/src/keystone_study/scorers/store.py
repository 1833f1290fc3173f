"""The scorers by name, and how a trained one is stored."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_study.policies.flow import FlowConfig
from keystone_study.scorers.scorer import Scorer
from keystone_study.scorers.taco import Taco
from keystone_study.scorers.value import Value

CONFIG, WEIGHTS = "scorer.json", "scorer.safetensors"
SCORERS: dict[str, type[Scorer]] = {scorer.name: scorer for scorer in (Taco, Value)}


def make_scorer(name: str, config: FlowConfig, seed: int = 0) -> Scorer:
    """An untrained scorer for the policies of a configuration."""
    if name not in SCORERS:
        raise KeystoneError(f"there is no scorer {name!r}: {nearest_name(name, SCORERS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SCORERS[name](config)


def save_scorer(scorer: Scorer, folder: Path) -> None:
    """Write ``scorer.json`` and the weights."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps({"scorer": scorer.name}) + "\n")
    save_file({name: value.contiguous() for name, value in scorer.state_dict().items()}, str(folder / WEIGHTS))


def load_scorer(folder: Path, config: FlowConfig) -> Scorer:
    """The scorer in a folder, for a policy with this configuration."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        scorer = make_scorer(json.loads((folder / CONFIG).read_text())["scorer"], config)
        scorer.load_state_dict(load_file(str(folder / WEIGHTS)))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise KeystoneError(f"the scorer in {folder} cannot be loaded: {error}") from error
    return scorer.eval().requires_grad_(False)
