"""LeRobot's development branch: the policies whose code changed after 0.6.1, and π0.5 with trained real-time chunking.

The environment is one with LeRobot's dependencies; the checkout goes before an installed version.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from upstream_like import contract

NAME = "lerobot-main"
CHANGED = ["vla_jepa", "pi05", "molmoact2", "fastwam"]


@pytest.fixture(scope="module")
def policies(checkout: Callable[..., Path]) -> Any:
    folder = checkout(NAME, "src")
    import lerobot

    assert Path(lerobot.__file__).is_relative_to(folder), f"another LeRobot was imported: {lerobot.__file__}"
    from tiny import POLICIES

    return POLICIES


@functools.cache
def built(recipe: Any, **options: Any) -> Any:
    return recipe.build(**options).requires_grad_(False)


def predict(recipe: Any, policy: Any, rows: int, **options: Any) -> Tensor:
    policy.reset()
    return policy.predict_action_chunk(dict(recipe.batch(rows)), **options)


def returned(call: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
    """What the policy returns of candidates: neither padded dimensions nor, in MolmoAct2, steps that are not executed."""
    steps, dims = call().shape[1:]
    return lambda candidates: candidates[:, :, :steps, :dims]


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize(("rows", "k"), [(1, 4), (3, 4)])
def test_candidates_are_single_calls(policies: Any, record: Callable[..., None], name: str, rows: int, k: int) -> None:
    recipe, policy = policies[name], built(policies[name])
    call = functools.partial(predict, recipe, policy, rows)
    for path in ("plain", "fast"):
        found = contract.largest_difference(policy, call, k, path, returned=returned(call))
        record(NAME, name, found)
        assert found < 1e-5


@pytest.mark.parametrize(("rows", "leftover"), [(1, 7), (3, 7), (1, 0)])
def test_trained_real_time_chunking(policies: Any, record: Callable[..., None], rows: int, leftover: int) -> None:
    from lerobot.policies.rtc.configuration_rtc import RTCConfig

    assert "mode" in {field.name for field in dataclasses.fields(RTCConfig)}
    config = RTCConfig(enabled=True, mode="trained", execution_horizon=6)
    recipe = policies["pi05"]
    policy = recipe.build(rtc_config=config, rtc_training_max_delay=4).requires_grad_(False)
    previous = torch.randn(rows, leftover, 6, generator=torch.Generator().manual_seed(1)) if leftover else None
    call = functools.partial(predict, recipe, policy, rows, inference_delay=2, prev_chunk_left_over=previous)
    for path in ("plain", "fast"):
        found = contract.largest_difference(policy, call, 4, path, returned=returned(call))
        record(NAME, "pi05, trained real-time chunking", found)
        assert found < 1e-5
    if previous is not None:
        torch.testing.assert_close(call()[:, :2], previous[:, :2])
