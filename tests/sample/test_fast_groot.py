"""GR00T's fast path in LeRobot's own policy: the same candidates as single calls, and nothing computed twice."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lerobot.policies.groot.action_head.cross_attention_dit import DiT
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from torch import Tensor, nn

import keystone_robotics as keystone
from keystone_robotics.sample.check import TOLERANCES
from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.families.groot.denoiser import run_network
from tiny import POLICIES
from tiny.common import patched, seeded, sharpen

GROOT = POLICIES["groot"]


@functools.cache
def build() -> Any:
    policy = GROOT.build().requires_grad_(False)
    policy.config.rtc_config = RTCConfig(enabled=True, execution_horizon=6)  # read only where a leftover is given
    return policy


@pytest.fixture
def policy() -> Iterator[Any]:
    yield build()
    keystone.detach(build())


def assert_fast(policy: Any, batch: dict[str, Any], k: int, **options: Any) -> Tensor:
    """Every candidate is compared with a single call; returns the chosen chunk."""
    handle = keystone.attach(policy, k=k, seed=0, check="all")
    policy.reset()
    chunk: Tensor = policy.predict_action_chunk(dict(batch), **options)
    finding = handle.engine.finding
    assert handle.path == "fast"
    assert finding.compared == k
    assert finding.difference <= 1e-5 * max(1.0, float(chunk.abs().max()))
    keystone.detach(policy)
    return chunk


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("k", [2, 4, 16])
def test_candidates_are_single_calls(policy: Any, batch_size: int, k: int) -> None:
    assert_fast(policy, GROOT.batch(batch_size), k)


def test_rows_differ_in_padding_and_embodiment(policy: Any) -> None:
    batch = GROOT.batch(3)
    whole = assert_fast(policy, batch, 4)
    for row in range(3):
        batch["attention_mask"][row, batch["attention_mask"].shape[1] - row :] = False
    batch["embodiment_id"] = torch.tensor([2, 0, 3])
    changed = assert_fast(policy, batch, 4)
    moved = (whole - changed).abs().amax(dim=(1, 2))
    assert moved[0] < 1e-4
    assert (moved[1:] > 1e-2).all(), "padding and embodiment have no effect: this test has no teeth"


@pytest.mark.parametrize("batch_size", [1, 3])
def test_real_time_chunking(policy: Any, batch_size: int) -> None:
    batch = GROOT.batch(batch_size)
    previous = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
    held = assert_fast(policy, batch, 4, inference_delay=2, prev_chunk_left_over=previous)
    assert (assert_fast(policy, batch, 4) - held).abs().max() > 1e-2, "the leftover has no effect"


def test_bfloat16() -> None:
    policy = GROOT.build(use_bf16=True)
    handle = keystone.attach(policy, k=8, seed=0, check="all")
    chunk = GROOT.predict(policy, GROOT.batch(3))
    assert handle.path == "fast"
    assert handle.engine.finding.difference <= TOLERANCES[torch.bfloat16] * max(1.0, float(chunk.abs().max()))


def test_network_that_sees_the_whole_context(policy: Any) -> None:
    head = policy._groot_model.action_head
    with seeded(0):
        network = DiT(**head.config.diffusion_model_cfg, cross_attention_dim=64).eval().requires_grad_(False)
    sharpen(network)
    with patched(head, model=network), patched(head.config, use_alternate_vl_dit=False):
        whole = assert_fast(policy, GROOT.batch(3), 4)
    assert (assert_fast(policy, GROOT.batch(3), 4) - whole).abs().max() > 1e-2


def test_unknown_network_runs_as_it_is(policy: Any) -> None:
    network = policy._groot_model.action_head.model
    known = type(network)
    network.__class__ = type("AnotherDiT", (known,), {})
    handle = keystone.attach(policy, k=4, seed=0, check="all")
    try:
        GROOT.predict(policy, GROOT.batch(3))
    finally:
        network.__class__ = known
    assert handle.path == "plain"


def test_step_is_one_graph_for_the_compiler(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[Any] = []

    def trace(engine: Engine, function: Any) -> Any:
        traced.append(function)
        return torch.compile(function, backend="eager", fullgraph=True)

    monkeypatch.setattr(Engine, "compiled_step", trace)
    assert_fast(policy, GROOT.batch(3), 4)
    assert traced == [run_network]


def test_what_the_candidates_share_is_computed_once(policy: Any) -> None:
    batch_size, k = 3, 4
    head = policy._groot_model.action_head
    rows: dict[str, list[int]] = {}
    hooks = []

    def count(name: str, module: nn.Module) -> None:
        seen = rows.setdefault(name, [])
        hooks.append(module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[0])))

    keystone.attach(policy, k=k, seed=0)
    GROOT.predict(policy, GROOT.batch(batch_size))
    first, *_ = blocks = head.model.transformer_blocks
    count("keys", first.attn1.to_k)
    count("values", first.attn1.to_v)
    count("time", head.model.timestep_encoder)
    count("modulation", blocks[1].norm1.linear)
    count("last modulation", head.model.proj_out_1)
    count("embodiment, in", head.action_encoder.W2)
    count("embodiment, out", head.action_decoder.layer1)
    GROOT.predict(policy, GROOT.batch(batch_size))
    for hook in hooks:
        hook.remove()
    steps = head.num_inference_timesteps
    assert rows == {
        "keys": [batch_size],
        "values": [batch_size],
        "time": [steps],
        "modulation": [steps],
        "last modulation": [steps],
        "embodiment, in": [batch_size] * steps,
        "embodiment, out": [batch_size] * steps,
    }
