"""A compiled step is for instructions of every length: another one brings no new graph in the middle of an episode."""

from typing import Any

import pytest
import torch
from lerobot.utils.constants import OBS_LANGUAGE_ATTENTION_MASK

import keystone
from tiny import POLICIES

MASKS = {
    "smolvla": OBS_LANGUAGE_ATTENTION_MASK,
    "pi0": OBS_LANGUAGE_ATTENTION_MASK,
    "pi05": OBS_LANGUAGE_ATTENTION_MASK,
    "groot": "attention_mask",
    "fastwam": "context_mask",
}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whatever is compiled from now on; traced and not made into machine code, which takes a minute."""
    made: list[Any] = []
    own = torch.compile

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", lambda function, **_: own(function, backend=backend))
    return made


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in MASKS])
def test_another_instruction_is_not_compiled_anew(name: str, rows: int, graphs: list[Any]) -> None:
    policy = POLICIES[name].build().requires_grad_(False)
    handle = keystone.attach(policy, k=3, seed=0, compile=True)
    graphs.clear()  # without that of the probe
    made = []
    for shorter in range(4):
        batch = POLICIES[name].batch(rows)
        mask = batch[MASKS[name]]
        mask[:, mask.shape[1] - shorter :] = False
        POLICIES[name].predict(policy, batch)
        assert handle.path == "fast"
        made.append(len(graphs))
    assert made[0] > 0
    assert made == made[:1] * 4
