"""In bfloat16 a wrong fast path does not pass for a rounding error; and no action dimension excuses errors in another."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics.sample.check import CheckSettings, DrawTrace, verify
from keystone_robotics.sample.families.pi import denoiser as gemma
from keystone_robotics.sample.families.smolvla import denoiser as smolvla
from keystone_robotics.sample.kit import attention
from keystone_robotics.sample.request import SampleRequest
from keystone_robotics.sample.timer import Mark, RoundTimer
from tiny import POLICIES


@pytest.fixture(scope="module")
def policies() -> dict[str, Any]:
    built = {"pi05": POLICIES["pi05"].build(dtype="bfloat16"), "smolvla": POLICIES["smolvla"].build()}
    built["smolvla"].model.vlm_with_expert.to(torch.bfloat16)
    return {name: policy.requires_grad_(False) for name, policy in built.items()}


def path_of(policy: Any, name: str) -> str:
    handle = keystone.attach(policy, k=4, seed=0)
    try:
        POLICIES[name].predict(policy, POLICIES[name].batch(2))
    finally:
        keystone.detach(policy)
    return handle.path


def halve_a_layer(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = module.attention_output

    def halved(layer: Any, *args: Any, **kwargs: Any) -> Any:
        return own(layer, *args, **kwargs) * (0.5 if layer.layer_idx == 0 else 1.0)

    monkeypatch.setattr(module, "attention_output", halved)


def lose_a_token(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short:
        @staticmethod
        def of(seen: torch.Tensor, dtype: torch.dtype) -> Any:
            seen = seen.clone()
            seen[..., -1] = False
            return attention.VisibleTokens.of(seen, dtype)

    monkeypatch.setattr(module, "VisibleTokens", Short)


CASES = [("pi05", gemma, halve_a_layer), ("pi05", gemma, lose_a_token), ("smolvla", smolvla, lose_a_token)]


@pytest.mark.parametrize(("name", "module", "spoil"), CASES)
def test_a_wrong_path_is_not_taken_for_rounding(
    name: str,
    module: Any,
    spoil: Callable[[Any, pytest.MonkeyPatch], None],
    policies: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert path_of(policies[name], name) == "fast"
    spoil(module, monkeypatch)
    assert path_of(policies[name], name) == "plain"


@pytest.mark.parametrize(("where", "passes"), [(0, False), (1, True)])
def test_a_large_dimension_excuses_no_error_in_another(where: int, passes: bool) -> None:
    noise = torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(0))
    scale = torch.tensor([1.0, 1000.0])  # the second may be padding
    candidates = (noise * scale).clone()
    candidates[..., where] += 1e-2
    request = SampleRequest(single=lambda: torch.randn(1, 5, 2) * scale)
    trace = DrawTrace(candidates[None], (noise[:, None],), {}, "plain", Mark.now())
    finding = verify(request, trace, CheckSettings(False, torch.float32, True), RoundTimer())
    assert (finding.problem == "") == passes
    assert finding.difference == pytest.approx(1e-2, rel=1e-2)
    assert passes or f"in action dimension {where} " in finding.problem
