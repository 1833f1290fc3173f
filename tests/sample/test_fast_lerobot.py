"""The fast paths of EVO1, VLA-JEPA, EO1, Wall-X and MolmoAct2 in LeRobot's own policies: the same candidates as single calls,
and the context neither copied nor projected for each of them.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lerobot.policies.molmoact2.molmoact2_hf_model.inference import _clone_static_inputs
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from torch import Tensor, nn

import keystone_robotics as keystone
from keystone_robotics.sample.check import TOLERANCES
from tiny import POLICIES, molmoact2
from tiny.common import patched
from tiny.shapes import Shapes

NAMES = ["evo1", "vla_jepa", "eo1", "wall_x", "molmoact2"]
RTC = ["evo1", "molmoact2"]
COARSE = {"evo1": "vlm_dtype", "vla_jepa": "torch_dtype", "eo1": "dtype", "molmoact2": molmoact2.DTYPE}
"""The option by which a policy is built in bfloat16; Wall-X always is."""


@functools.cache
def build(name: str, chunking: bool = False) -> Any:
    config = {"rtc_config": RTCConfig(enabled=True, execution_horizon=6)} if chunking else {}
    policy = POLICIES[name].build(**config).requires_grad_(False)
    if name == "wall_x":
        policy.model.model.layers.float()  # so that differences are rounding errors and nothing else
    return policy


@pytest.fixture
def policy(name: str) -> Iterator[Any]:
    yield build(name)
    keystone.detach(build(name))


def exactness(name: str) -> float:
    """Wall-X rounds its embeddings to bfloat16 in every step, and candidates that differ by 1e-7 may round apart; its decoder
    alone is held to 1e-5 in test_shared_qwen.py.
    """
    return 5e-3 if name == "wall_x" else 1e-5


def drawn(name: str, policy: Any, batch: dict[str, Any], k: int, path: str = "fast", **options: Any) -> Tensor:
    """The candidates (B, K, T, D) of a round in which each was compared with a single call."""
    rounds: list[Any] = []
    handle = keystone.attach(policy, k=k, seed=0, check="all", fast=path == "fast")
    handle.subscribe(rounds.append)
    policy.reset()
    try:
        policy.predict_action_chunk(dict(batch), **options)
    finally:
        keystone.detach(policy)
    assert (handle.path, handle.engine.finding.compared) == (path, k)
    candidates: Tensor = rounds[0].candidates
    assert handle.engine.finding.difference <= exactness(name) * max(1.0, float(candidates.abs().max()))
    return candidates


@pytest.mark.parametrize(
    ("name", "rows", "k"), [*((name, 3, 4) for name in NAMES), ("evo1", 1, 7), ("eo1", 1, 2), ("molmoact2", 1, 2)]
)
def test_both_paths_draw_what_single_calls_draw(name: str, policy: Any, rows: int, k: int) -> None:
    fast, plain = (drawn(name, policy, POLICIES[name].batch(rows), k, path) for path in ("fast", "plain"))
    assert fast.shape[:2] == (rows, k)
    torch.testing.assert_close(fast, plain, rtol=0, atol=exactness(name) * max(1.0, float(plain.abs().max())))


@pytest.mark.parametrize("name", [*COARSE, "wall_x"])
def test_bfloat16(name: str) -> None:
    policy = POLICIES[name].build(**({COARSE[name]: "bfloat16"} if name in COARSE else {})).requires_grad_(False)
    handle = keystone.attach(policy, k=4, seed=0, check="all")
    chunk = POLICIES[name].predict(policy, POLICIES[name].batch(3))
    assert handle.path == "fast"
    assert handle.engine.finding.difference <= TOLERANCES[torch.bfloat16] * max(1.0, float(chunk.abs().max()))


@pytest.mark.parametrize("name", ["evo1", "vla_jepa", "molmoact2"])
def test_autocast(name: str, policy: Any) -> None:
    handle = keystone.attach(policy, k=4, seed=0, check="all")
    with torch.autocast("cpu", torch.bfloat16):
        POLICIES[name].predict(policy, POLICIES[name].batch(3))
    assert handle.path == "fast"


def shorter_instructions(batch: dict[str, Any]) -> None:
    batch["task"] = ["pick up the cube", "push", "open the drawer"]


def padding_on_the_left(batch: dict[str, Any]) -> None:
    for key, padding in (("input_ids", 30), ("attention_mask", 1), ("mm_token_type_ids", 0)):
        batch[key] = torch.cat([torch.full((3, 2), padding, dtype=batch[key].dtype), batch[key]], dim=1)
    for row in range(3):
        batch["attention_mask"][row, :row] = 0


def padding_on_the_right(batch: dict[str, Any]) -> None:
    for row in range(3):
        batch["attention_mask"][row, batch["attention_mask"].shape[1] - row :] = 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("evo1", shorter_instructions),
        ("vla_jepa", shorter_instructions),
        ("eo1", padding_on_the_left),
        ("molmoact2", padding_on_the_right),
    ],
)
def test_rows_differ_in_padding(name: str, policy: Any, change: Callable[[dict[str, Any]], None]) -> None:
    batch = POLICIES[name].batch(3)
    whole = drawn(name, policy, batch, 4)
    change(batch)
    moved = (drawn(name, policy, batch, 4) - whole).abs().amax(dim=(1, 2, 3))
    assert moved[1] > 1e-3, "the padding has no effect: this test has no teeth"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", RTC)
def test_real_time_chunking(name: str, rows: int) -> None:
    policy = build(name, chunking=True)
    batch = POLICIES[name].batch(rows)
    width = policy.config.max_action_dim if name == "evo1" else 6
    previous = torch.randn(7, width, generator=torch.Generator().manual_seed(1))
    guided = drawn(name, policy, batch, 4, inference_delay=2, prev_chunk_left_over=previous)
    free = drawn(name, policy, batch, 4, inference_delay=0, prev_chunk_left_over=None)
    assert (guided[..., :6] - free[..., :6]).abs().max() > 1e-2, "the leftover has no effect"


# What is not known runs as it is


def networks(name: str, policy: Any) -> list[nn.Module]:
    """Modules that the fast path goes past."""
    if name == "evo1":
        block = policy.model.action_head.transformer_blocks[1]
        return [block, block.attn]
    if name == "vla_jepa":
        network = policy.model.action_model.model
        block = network.transformer_blocks[1]
        return [network, block, block.norm1, block.attn1]
    if name == "eo1":
        backbone = policy.model.vlm_backbone.model
        layer = backbone.language_model.layers[1]
        return [backbone, backbone.language_model, layer, layer.self_attn]
    layer = policy.model.model.layers[1]
    return [policy.model.model, layer, layer.self_attn]


GONE_PAST = [name for name in NAMES if name != "molmoact2"]


def assert_plain(name: str, policy: Any) -> None:
    handle = keystone.attach(policy, k=2, seed=0)
    try:
        POLICIES[name].predict(policy, POLICIES[name].batch(1))
    finally:
        keystone.detach(policy)
    assert handle.path == "plain"


@pytest.mark.parametrize("name", GONE_PAST)
def test_replaced_forwards_and_hooks_are_not_passed_by(name: str, policy: Any) -> None:
    for module in networks(name, policy):
        module.forward = functools.partial(module.forward)
        try:
            assert_plain(name, policy)
        finally:
            del module.forward
        called: list[int] = []
        hook = module.register_forward_hook(lambda *_, called=called: called.append(1))
        try:
            assert_plain(name, policy)
        finally:
            hook.remove()
        assert called


@pytest.mark.parametrize("name", GONE_PAST)
def test_other_classes_are_not_recognised(name: str, policy: Any) -> None:
    module = networks(name, policy)[-1 if name == "evo1" else -3 if name == "vla_jepa" else -2]
    known = type(module)
    module.__class__ = type("Another", (known,), {})
    try:
        assert_plain(name, policy)
    finally:
        module.__class__ = known


@pytest.mark.parametrize("name", ["molmoact2"])
def test_attention_of_ones_own_is_left_alone(name: str, policy: Any) -> None:
    attention = policy._action_expert().blocks[1].cross_attn
    own, rows = attention.forward, []

    def forward(x: Tensor, **others: Any) -> Tensor:
        rows.append((x.shape[0], others["kv_k"].shape[0]))
        return own(x, **others)  # type: ignore[no-any-return]

    attention.forward = forward
    try:
        assert_plain(name, policy)
    finally:
        del attention.forward
    assert (2, 2) in rows


class Graphs:
    """The policy's CUDA graphs without CUDA: the loop runs on inputs that were copied as a graph copies them."""

    def can_use_action_flow(self, inputs: Any) -> bool:
        return True

    def run_action_flow(self, inputs: Any, steps: int, run_loop: Callable[..., Tensor]) -> Tensor:
        return run_loop(_clone_static_inputs(inputs), steps)


@pytest.mark.parametrize("path", ["fast", "plain"])
@pytest.mark.parametrize("name", ["molmoact2"])
def test_inputs_can_be_those_of_a_cuda_graph(name: str, policy: Any, path: str) -> None:
    with patched(policy._backbone(), action_cuda_graph_manager=Graphs()):
        drawn(name, policy, POLICIES[name].batch(1), 4, path)


@pytest.mark.parametrize("name", ["eo1"])
def test_masked_actions_are_left_to_the_decoder(name: str, policy: Any) -> None:
    batch = POLICIES[name].batch(3)
    batch["attention_mask"][1, -3:] = 0
    drawn(name, policy, batch, 4, "plain")
    handle = keystone.attach(policy, k=4, seed=0, check="all")
    POLICIES[name].predict(policy, batch)
    assert handle.path == "plain"


# Nothing is done twice


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(("name", "actions"), [("eo1", 8), ("wall_x", 8)])
def test_cache_is_neither_copied_nor_appended_to(name: str, policy: Any, actions: int, fast: bool) -> None:
    rows, k = 1, 5
    keystone.attach(policy, k=k, seed=0, fast=fast)
    POLICIES[name].predict(policy, POLICIES[name].batch(rows))
    lengths: list[int] = []
    decoder = policy.model.vlm_backbone.model.language_model if name == "eo1" else policy.model.model
    hook = decoder.layers[0].self_attn.k_proj.register_forward_pre_hook(
        lambda _, given: lengths.append(given[0].shape[1])
    )
    with Shapes() as shapes:
        POLICIES[name].predict(policy, POLICIES[name].batch(rows))
    hook.remove()
    prompt = lengths[0]
    tensors = [shape for shape in shapes.seen if len(shape) == 4]
    assert any(prompt in shape for shape in tensors), "the prompt is not seen: this test has no teeth"
    appended = [shape for shape in tensors if prompt + actions in shape]
    copied = [shape for shape in tensors if shape[0] == k and prompt in shape]
    assert (not appended, not copied) == (fast, fast)


@pytest.mark.parametrize(("name", "projected"), [("vla_jepa", 1), ("molmoact2", 2)])
def test_context_is_projected_once_for_each_observation(name: str, policy: Any, projected: int) -> None:
    """MolmoAct2 uses one projection for all layers of the context, of which there are two."""
    keystone.attach(policy, k=4, seed=0)
    POLICIES[name].predict(policy, POLICIES[name].batch(3))
    if name == "vla_jepa":
        keys = policy.model.action_model.model.transformer_blocks[0].attn1.to_k
    else:
        keys = policy._action_expert().context_k_proj
    rows: list[int] = []
    hook = keys.register_forward_pre_hook(lambda _, given: rows.append(given[0].shape[0]))
    POLICIES[name].predict(policy, POLICIES[name].batch(3))
    hook.remove()
    assert rows == [3] * projected


@pytest.mark.parametrize("name", ["molmoact2"])
def test_candidates_are_queries_of_one_row(name: str, policy: Any) -> None:
    keystone.attach(policy, k=4, seed=0)
    POLICIES[name].predict(policy, POLICIES[name].batch(3))
    attention = policy._action_expert().blocks[0].cross_attn
    rows: list[int] = []
    hook = attention.q_proj.register_forward_pre_hook(lambda _, given: rows.append(given[0].shape[0]))
    POLICIES[name].predict(policy, POLICIES[name].batch(3))
    hook.remove()
    assert rows == [3] * 4
