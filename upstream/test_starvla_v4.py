"""StarVLA's QwenPI_v4 head (pull request 436), whose blocks attend to actions and context in one softmax: plain path."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import starvla_heads
from groot_head import spread_out

from upstream_like import contract

NAME = "starVLA-23f3788"


@pytest.fixture(scope="module", params=[2, 0], ids=["every layer", "last layer"])
def framework(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> starvla_heads.Framework:
    checkout(NAME)
    from omegaconf import OmegaConf
    from starVLA.model.modules.action_model.LayerwiseFM_ActionHeader_v4 import LayerwiseFlowmatchingActionHeadV4

    shape = {
        **starvla_heads.LAYERS, "output_dim": 32, "cross_attention_dim": 32, "input_embedding_dim": 32,
        "attention_head_dim": 16, "num_attention_heads": 2,
    }  # fmt: skip
    action_model = OmegaConf.create({**starvla_heads.SETTINGS, "diffusion_model_cfg": shape})
    head = LayerwiseFlowmatchingActionHeadV4(SimpleNamespace(framework=SimpleNamespace(action_model=action_model)))
    return starvla_heads.Framework(spread_out(head), request.param, masked=True)


@pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
def test_candidates_are_single_calls(
    framework: starvla_heads.Framework, record: Callable[..., None], rows: int, k: int
) -> None:
    found = contract.largest_difference(framework, partial(framework.predict_action, rows, True), k)
    record(NAME, "candidates", found)
    assert found < 1e-5


def test_one_candidate_is_untouched_and_nothing_is_left_behind(framework: starvla_heads.Framework) -> None:
    contract.assert_one_is_untouched(framework, partial(framework.predict_action, 2, True))
    contract.assert_no_trace(framework, partial(framework.predict_action, 2, True))
