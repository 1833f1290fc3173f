"""A compiled step brings no surprises in the middle of an episode: no new graph for another instruction, no hook unheard."""

from typing import Any

import pytest
import torch
from lerobot.utils.constants import OBS_LANGUAGE_ATTENTION_MASK

import keystone_robotics as keystone
from keystone_robotics.sample.families.fastwam.denoiser import blocks_of
from tiny import POLICIES

MASKS = {
    "smolvla": OBS_LANGUAGE_ATTENTION_MASK,
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


@pytest.mark.parametrize(
    ("name", "rows"),
    [("smolvla", 2), ("fastwam", 1)],  # π0.5 and GR00T: test_hook_that_came_after_compiling_is_run
)
def test_another_instruction_is_not_compiled_anew(name: str, rows: int, graphs: list[Any]) -> None:
    policy = POLICIES[name].build().requires_grad_(False)
    handle = keystone.attach(policy, k=3, seed=0, compile=True)
    graphs.clear()  # without that of the probe
    made = []
    for shorter in range(3):
        batch = POLICIES[name].batch(rows)
        mask = batch[MASKS[name]]
        mask[:, mask.shape[1] - shorter :] = False
        POLICIES[name].predict(policy, batch)
        assert handle.path == "fast"
        made.append(len(graphs))
    assert made[0] > 0
    assert made == made[:1] * 3


def feed_forward(name: str, policy: Any) -> Any:
    """Which the fast path calls: uncompiled, it keeps its hooks there."""
    if name == "groot":
        return policy._groot_model.action_head.model.transformer_blocks[0].ff
    if name == "fastwam":
        return blocks_of(policy.model.mot)[0].ffn
    if name == "smolvla":
        return policy.model.vlm_with_expert.lm_expert.layers[0].mlp
    return policy.model.paligemma_with_expert.gemma_expert.model.layers[0].mlp


@pytest.mark.parametrize(
    ("name", "fast"),
    [("smolvla", False), ("pi05", True), ("groot", True)],
)
def test_hook_that_came_after_compiling_is_run(name: str, fast: bool, graphs: list[Any]) -> None:
    policy, batch, calls = POLICIES[name].build().requires_grad_(False), POLICIES[name].batch(1), []
    handle = keystone.attach(policy, k=3, seed=0, compile=True, fast=fast)
    path = "fast" if fast else "plain"
    for hooked, expected in ((False, path), (True, "plain"), (False, path)):
        calls.clear()
        made = len(graphs)
        if hooked:
            hook = feed_forward(name, policy).register_forward_hook(lambda *_: calls.append(1))
        POLICIES[name].predict(policy, batch)
        assert handle.path == expected
        assert bool(calls) == hooked
        if hooked:
            hook.remove()
            assert len(graphs) == made


@pytest.mark.parametrize("name", ["smolvla"])
def test_sampler_that_is_compiled_as_a_whole_does_not_ask_for_the_path(name: str) -> None:
    policy, given = POLICIES[name].build().requires_grad_(False), []
    keystone.attach(policy, k=3, seed=0, check=False)

    step = policy.model.denoise_step
    policy.model.denoise_step = lambda *args, **kwargs: given.append((args, kwargs)) or step(*args, **kwargs)
    POLICIES[name].predict(policy, POLICIES[name].batch(1))
    del policy.model.denoise_step
    args, kwargs = given[0]
    found = torch._dynamo.explain(policy.model.denoise_step)(*args, **kwargs)
    frames = [frame for reason in found.break_reasons for frame in reason.user_stack]
    assert frames, "nothing breaks any more: compile it with fullgraph=True instead"
    assert not [frame for frame in frames if frame.name == "is_sharing"]


@pytest.mark.parametrize("name", ["groot"])
def test_another_number_of_steps_is_exact_and_not_compiled_anew(name: str, graphs: list[Any]) -> None:
    policy, batch = POLICIES[name].build().requires_grad_(False), POLICIES[name].batch(1)
    handle = keystone.attach(policy, k=3, seed=0, compile=True, check="all")
    chunks, made = [], []
    for steps in (None, 2, None):
        handle.steps, handle.engine.finding = steps, None
        with handle.seeded(1):
            chunks.append(POLICIES[name].predict(policy, batch))
        assert (handle.path, handle.engine.finding is not None) == ("fast", len(made) < 2)
        made.append(len(graphs))
    assert made[0] == made[1] == made[2]
    assert torch.equal(chunks[0], chunks[2])
    assert not torch.isclose(chunks[0], chunks[1]).all()
