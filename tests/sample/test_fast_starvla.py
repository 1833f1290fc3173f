"""The fast path of StarVLA's π heads, which have a context for each layer: on a copy of their transformer that LeRobot has."""

import functools
from typing import Any

import pytest
import torch
from lerobot.policies.groot.action_head import cross_attention_dit
from torch import Tensor, nn

import keystone_robotics as keystone
from keystone_robotics.sample.families.groot.denoiser import run_blocks
from tiny.common import seeded, sharpen
from upstream_like import starvla_like


class DiT(cross_attention_dit.DiT):
    """With the forward of StarVLA's, whose network takes one context for each block."""

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        encoder_hidden_states: list[Tensor],
        timestep: Tensor,
        encoder_attention_mask: Tensor | None = None,
        return_pre_output: bool = False,
    ) -> Tensor:
        assert return_pre_output
        time = self.timestep_encoder(timestep)
        for index, block in enumerate(self.transformer_blocks):
            own = index % 2 and self.config.interleave_self_attention
            hidden_states = block(
                hidden_states,
                encoder_hidden_states=None if own else encoder_hidden_states[index],
                encoder_attention_mask=None if own else encoder_attention_mask,
                temb=time,
            )
        return hidden_states


class Framework(starvla_like.Framework):
    """With four layers, which differ, and rows that differ in what is visible."""

    def encode(self, images: Tensor) -> list[Tensor]:
        first, second = super().encode(images)
        return [first, second, 3 * first.sin(), second.cos()]

    def predict_action(self, images: Tensor, states: Tensor) -> dict[str, Any]:
        visible = torch.arange(starvla_like.TOKENS) < torch.arange(3, 3 + len(images))[:, None]
        masks = {"encoder_attention_mask": visible} if self.masked else {}
        return {"actions": self.action_model.predict_action(self.encode(images), states, **masks)}


def build(head: type, interleaves: bool, masked: bool) -> Any:
    def network(width: int, context: int) -> nn.Module:
        kind = DiT if head is starvla_like.LayerwiseHead else cross_attention_dit.DiT
        return kind(
            num_attention_heads=2,
            attention_head_dim=width // 2,
            output_dim=5,
            num_layers=4,
            interleave_self_attention=interleaves,
            cross_attention_dim=context,
            positional_embeddings=None,
        )

    with seeded(0):
        framework = Framework(head(network), layers=True, masked=masked).eval().requires_grad_(False)
    sharpen(framework)
    return framework


NEW, OLD = starvla_like.LayerwiseHead, starvla_like.OldLayerwiseHead
HEADS = {
    "now": (NEW, True, True),
    "now, all cross": (NEW, False, True),
    "without a mask": (NEW, True, False),
    "before": (OLD, False, False),
}


def ask(framework: Any, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    images, states = torch.randn(rows, 4, generator=generator), torch.randn(rows, 1, 5, generator=generator)
    chunk: Tensor = framework.predict_action(images, states)["actions"]
    return chunk


@pytest.mark.parametrize(("rows", "k"), [(1, 4), (3, 2), (3, 16)])
@pytest.mark.parametrize("name", HEADS)
def test_candidates_are_single_calls(name: str, rows: int, k: int) -> None:
    framework = build(*HEADS[name])
    handle = keystone.attach(framework, k=k, seed=0, check="all")
    chunk = ask(framework, rows)
    assert (handle.path, handle.engine.finding.compared) == ("fast", k)
    assert handle.engine.finding.difference <= 1e-5 * max(1.0, float(chunk.abs().max()))


def test_other_numbers_of_contexts_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = build(*HEADS["now"])
    encode = framework.encode
    monkeypatch.setitem(vars(framework), "encode", lambda images: [*encode(images), images])
    assert path_of(framework) == "plain"


def test_other_masks_run_as_they_are() -> None:
    framework = build(*HEADS["now"])
    visible = torch.arange(starvla_like.TOKENS).expand(2, -1) < 5
    contexts = framework.encode(torch.randn(2, 4))
    for mask, path in ((visible, "fast"), (torch.where(visible, 0.0, -1e9)[:, None], "plain")):
        handle = keystone.attach(framework, k=4, seed=0)
        framework.action_model.predict_action(contexts, None, encoder_attention_mask=mask)
        assert handle.path == path
        keystone.detach(framework)


def test_replaced_forward_is_used() -> None:
    framework = build(*HEADS["now"])
    framework.action_model.model.forward = functools.partial(framework.action_model.model.forward)
    assert path_of(framework) == "plain"


def path_of(framework: Any) -> str:
    handle = keystone.attach(framework, k=4, seed=0)
    ask(framework, 2)
    return handle.path


def test_context_is_projected_once_without_what_nobody_sees() -> None:
    framework = build(*HEADS["now"])
    keystone.attach(framework, k=4, seed=0)
    ask(framework, 3)
    first, own, second, _ = framework.action_model.model.transformer_blocks
    seen: dict[str, list[tuple[int, ...]]] = {}
    for name, block in (("first", first), ("own", own), ("second", second)):
        rows = seen.setdefault(name, [])
        block.attn1.to_k.register_forward_pre_hook(lambda _, given, rows=rows: rows.append(given[0].shape[:2]))
    ask(framework, 3)
    assert seen["first"] == seen["second"] == [(3, 5)], "of seven tokens, no row sees more than five"
    assert len(seen["own"]) == framework.action_model.num_inference_timesteps


def test_step_is_one_graph_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[Any] = []

    def trace(session: Any, function: Any) -> Any:
        traced.append(function)
        return torch.compile(function, backend="eager", fullgraph=True)

    monkeypatch.setattr("keystone_robotics.sample.engine.Engine.compiled_step", trace)
    framework = build(*HEADS["now"])
    handle = keystone.attach(framework, k=4, seed=0)
    ask(framework, 1)
    assert (handle.path, traced) == ("fast", [run_blocks])
