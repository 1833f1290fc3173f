"""The fast paths of SmolVLA, π0 and π0.5: exact on every kind of input, and without the waste that they are for."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from lerobot.utils.constants import OBS_LANGUAGE_ATTENTION_MASK
from torch import Tensor

import keystone_robotics as keystone
from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import RoundEvent
from keystone_robotics.sample import engine
from keystone_robotics.sample.kit import attention, packing
from tiny import POLICIES
from tiny.efficient import as_on_cuda
from tiny.shapes import Shapes

NAMES = ["pi0", "pi05", "smolvla"]
SUFFIX = 10
"""Action steps of the tiny policies."""


def named(names: Sequence[str]) -> Any:
    """One case for each policy; all of a policy's cases share a worker, which builds it once."""
    return pytest.mark.parametrize("name", list(names))


def ragged(name: str, rows: int) -> dict[str, Any]:
    """Observations whose instructions differ in length; the last has none."""
    batch = POLICIES[name].batch(rows)
    mask = batch[OBS_LANGUAGE_ATTENTION_MASK]
    for row in range(rows):
        mask[row, mask.shape[1] * (rows - 1 - row) // rows :] = False
    return batch


def prove(policy: Any, name: str, batch: dict[str, Any], k: int = 5) -> Any:
    """A round in which every candidate is compared with the policy's own call; returns the finding."""
    handle = keystone.attach(policy, k=k, seed=0, check="all")
    try:
        POLICIES[name].predict(policy, batch)
    finally:
        keystone.detach(policy)
    finding = handle.engine.finding
    assert (finding.k, finding.compared) == (k, k)
    return finding


@named(NAMES)
@pytest.mark.parametrize("rows", [1, 3])
def test_path_is_exact(name: str, policy: Any, rows: int) -> None:
    for batch in (POLICIES[name].batch(rows), ragged(name, rows)):
        finding = prove(policy, name, batch)
        assert finding.path == "fast"
        assert finding.difference < 2e-5


@pytest.mark.parametrize(
    "options",
    [
        {"attention_mode": "self_attn"},
        {"self_attn_every_n_layers": 3},
        {"self_attn_every_n_layers": -1},
        {"prefix_length": 60},
        {"add_image_special_tokens": True},
        {"expert_width_multiplier": 0.75},
    ],
    ids=str,
)
def test_every_kind_of_smolvla(options: dict[str, Any]) -> None:
    finding = prove(POLICIES["smolvla"].build(**options).requires_grad_(False), "smolvla", ragged("smolvla", 2))
    assert finding.path == "fast"
    assert finding.difference < 2e-5


@named(["pi05", "smolvla"])
def test_bfloat16(name: str) -> None:
    policy = POLICIES[name].build(**({"dtype": "bfloat16"} if name == "pi05" else {}))
    if name == "smolvla":
        policy.model.vlm_with_expert.to(torch.bfloat16)
    assert prove(policy, name, POLICIES[name].batch(3)).path == "fast"


@named(["pi05", "smolvla"])
def test_autocast(name: str, policy: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert prove(policy, name, ragged(name, 3)).path == "fast"


@named(["pi05", "smolvla"])
def test_autocast_after_the_first_round(name: str, policy: Any) -> None:
    handle, drawn = settled(policy, name, k=3, rows=2), {}
    with torch.autocast("cpu", torch.bfloat16):
        for fast in (True, False):
            handle.engine.paths.fast = fast
            rounds: list[RoundEvent] = []
            unsubscribe = handle.subscribe(rounds.append)
            with handle.seeded(3):
                POLICIES[name].predict(policy, ragged(name, 2))
            unsubscribe()
            drawn[fast] = rounds[0].candidates
            assert handle.path == ("fast" if fast else "plain")
    torch.testing.assert_close(drawn[True], drawn[False], rtol=0, atol=2e-2 * float(drawn[False].abs().max()))


@named(NAMES)
def test_guidance_is_the_same_on_both_paths(name: str) -> None:
    """The first round is checked without a previous chunk; guidance by one needs gradients in the rounds after it."""
    config = RTCConfig(enabled=True, execution_horizon=6)
    policy = POLICIES[name].build(rtc_config=config)  # whose weights want gradients, as they do after loading
    batch = POLICIES[name].batch(2)
    previous = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
    candidates: dict[Any, Tensor] = {}
    for fast in (True, False):
        handle = keystone.attach(policy, k=4, fast=fast)
        policy.predict_action_chunk(dict(batch))
        assert handle.path == ("fast" if fast else "plain")
        for leftover in (None, previous):
            rounds: list[RoundEvent] = []
            unsubscribe = handle.subscribe(rounds.append)
            with handle.seeded(3):
                policy.predict_action_chunk(dict(batch), inference_delay=2, prev_chunk_left_over=leftover)
            unsubscribe()
            candidates[fast, leftover is None] = rounds[0].candidates
        keystone.detach(policy)
    for unguided in (True, False):
        torch.testing.assert_close(candidates[True, unguided], candidates[False, unguided], rtol=1e-4, atol=1e-4)
    assert (candidates[True, True] - candidates[True, False]).abs().max() > 1e-2, "guidance has no effect here"


@named([*NAMES, "groot"])
def test_guidance_without_delay_is_checked_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RTCConfig(enabled=True, execution_horizon=6)
    policy = POLICIES[name].build(**({} if name == "groot" else {"rtc_config": config})).requires_grad_(False)
    policy.config.rtc_config = config  # GR00T's has no such field, but reads it where a rollout has set it
    previous = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
    check = Mock(side_effect=engine.verify)
    monkeypatch.setattr(engine, "verify", check)
    handle = keystone.attach(policy, k=3)
    for leftover, checks in ((None, 1), (previous, 2), (previous, 2), (None, 2)):
        policy.predict_action_chunk(dict(POLICIES[name].batch(1)), inference_delay=0, prev_chunk_left_over=leftover)
        assert (handle.path, check.call_count) == ("fast", checks)


def settled(policy: Any, name: str, k: int, rows: int) -> keystone.Handle:
    """Attached, and past the first round with its comparisons."""
    handle = keystone.attach(policy, k=k, seed=0)
    POLICIES[name].predict(policy, POLICIES[name].batch(rows))
    assert handle.path == "fast"
    return handle


@named(NAMES)
def test_prefix_is_neither_copied_nor_appended_to(name: str, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, k = 2, 3
    settled(policy, name, k, rows)
    prefixes: list[Tensor] = []
    embed = policy.model.embed_prefix

    def spy(*args: Any, **kwargs: Any) -> Any:
        embedded = embed(*args, **kwargs)
        prefixes.append(embedded[1])
        return embedded

    monkeypatch.setitem(vars(policy.model), "embed_prefix", spy)
    with Shapes() as shapes:
        POLICIES[name].predict(policy, POLICIES[name].batch(rows))
    (prefix,) = prefixes
    length, suffix = prefix.shape[1], SUFFIX + (name == "pi0")
    assert any(length in shape for shape in shapes.seen), "the prefix is not seen: this test has no teeth"
    appended = {length + suffix, length + k * suffix}
    assert not [shape for shape in shapes.seen if appended & set(shape)]
    assert not [shape for shape in shapes.seen if shape[:1] == (rows * k,) and length in shape]


@named(NAMES)
def test_masks_are_made_once_in_a_round(name: str, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(side_effect=packing.suffix_mask)
    settled(policy, name, k=3, rows=2)
    monkeypatch.setattr(packing, "suffix_mask", made)
    POLICIES[name].predict(policy, POLICIES[name].batch(2))
    assert made.call_count == 1


@named(NAMES)
def test_path_is_exact_on_the_way_of_a_gpu(name: str, policy: Any) -> None:
    with as_on_cuda():
        finding = prove(policy, name, ragged(name, 2))
    assert finding.path == "fast"
    assert finding.difference < 2e-5


@pytest.mark.parametrize("name", ["pi05"])
def test_a_kernel_that_raises_leaves_the_plain_path(
    name: str, policy: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = Mock(side_effect=RuntimeError("no kernel image is available for execution on the device"))
    with as_on_cuda(), monkeypatch.context() as within:  # not beyond: it would put back what stands in for the kernel
        within.setattr(attention, "_fused_on_cuda", refused)
        finding = prove(policy, name, POLICIES[name].batch(2))
    assert refused.called
    assert finding.path == "plain"
    assert "no kernel image" in caplog.text


@pytest.mark.parametrize("name", ["smolvla"])
def test_cross_attention_projects_the_prefix_once_in_a_round(name: str, policy: Any) -> None:
    settled(policy, name, k=3, rows=2)
    projected: list[int] = []
    layers = policy.model.vlm_with_expert.lm_expert.layers
    hooks = [
        projection.register_forward_pre_hook(lambda _, inputs: projected.append(inputs[0].shape[0]))
        for layer in layers[1::2]
        for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj)
    ]
    POLICIES[name].predict(policy, POLICIES[name].batch(2))
    for hook in hooks:
        hook.remove()
    assert projected == [2] * len(hooks)


@pytest.mark.parametrize("name", ["pi05"])
def test_norms_are_modulated_once_in_a_step(name: str, policy: Any) -> None:
    settled(policy, name, k=3, rows=2)
    modulated: list[int] = []
    expert = policy.model.paligemma_with_expert.gemma_expert.model
    norms = [norm for layer in expert.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    hooks = [
        norm.dense.register_forward_pre_hook(lambda _, inputs: modulated.append(inputs[0].shape[0]))
        for norm in [*norms, expert.norm]
    ]
    POLICIES[name].predict(policy, POLICIES[name].batch(2))
    for hook in hooks:
        hook.remove()
    assert modulated == [2] * len(hooks) * policy.config.num_inference_steps


@pytest.mark.parametrize(("name", "fast"), [("pi05", False), ("smolvla", True)])
def test_compiled_step_is_exact(name: str, policy: Any, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    compile_step = torch.compile

    def traced_only(function: Any, **_: Any) -> Any:  # machine code for it takes a minute
        compiled.append(function)
        return compile_step(function, backend="eager")

    monkeypatch.setattr(torch, "compile", traced_only)
    handle = keystone.attach(policy, k=4, seed=0, check="all", fast=fast, compile=True)
    POLICIES[name].predict(policy, POLICIES[name].batch(2))
    POLICIES[name].predict(policy, POLICIES[name].batch(2))
    assert handle.path == ("fast" if fast else "plain")
    assert len(compiled) == 2, "the probe and one step, compiled once"


@pytest.mark.parametrize("name", ["pi05"])
def test_missing_compiler_is_said_before_anything_runs(name: str, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(values: Tensor) -> Tensor:
        raise RuntimeError("No working C++ compiler found\nin many words")

    monkeypatch.setattr(torch, "compile", lambda function, **_: missing)
    with pytest.raises(
        KeystoneError, match=r"No working C\+\+ compiler found\). It needs a C\+\+ compiler such as g\+\+"
    ):
        keystone.attach(policy, k=4, compile=True)
    assert keystone.attached(policy) is None
