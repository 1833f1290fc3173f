"""StarVLA's real flow-matching heads with tiny random weights; the tests of both its versions."""

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from groot_head import spread_out
from torch import Tensor, nn

from upstream_like import contract

SETTINGS = {
    "action_model_type": "DiT-B", "hidden_size": 24, "action_dim": 7, "state_dim": 5, "action_horizon": 6,
    "future_action_window_size": 5, "num_inference_timesteps": 4, "num_target_vision_tokens": 4, "add_pos_embed": True,
    "max_seq_len": 64, "noise_beta_alpha": 1.5, "noise_beta_beta": 1.0, "noise_s": 0.999, "num_timestep_buckets": 1000,
}  # fmt: skip
LAYERS = {"num_layers": 2, "dropout": 0.2, "norm_type": "ada_norm", "positional_embeddings": None}


class Framework(nn.Module):
    """In the place of QwenGR00T and QwenPI: calls its head as they do."""

    def __init__(self, head: nn.Module, layers: int, masked: bool) -> None:
        super().__init__()
        self.action_model, self.layers, self.masked = head, layers, masked

    def predict_action(self, rows: int, with_state: bool) -> Tensor:
        generator = torch.Generator().manual_seed(rows)
        context: Any = [torch.randn(rows, 9, 32, generator=generator) for _ in range(self.layers or 1)]
        state = torch.randn(rows, 1, 5, generator=generator) if with_state else None
        mask = {"encoder_attention_mask": torch.arange(9).expand(rows, -1) < 7} if self.masked else {}
        return self.action_model.predict_action(context if self.layers else context[0], state, **mask)


def build(kind: str, masked: bool) -> Framework:
    """A framework with a head of the kind "GR00T" or "Layerwise"."""
    from omegaconf import OmegaConf
    from starVLA.model.modules.action_model import GR00T_ActionHeader, LayerwiseFM_ActionHeader

    if kind == "GR00T":
        GR00T_ActionHeader.DiTConfig["DiT-B"] = {
            "input_embedding_dim": 32, "attention_head_dim": 16, "num_attention_heads": 2,
        }  # fmt: skip
        shape = {**LAYERS, "output_dim": 24, "cross_attention_dim": 32, "interleave_self_attention": True}
        head = GR00T_ActionHeader.FlowmatchingActionHead
    else:
        shape = {
            **LAYERS, "output_dim": 32, "cross_attention_dim": 32, "input_embedding_dim": 32,
            "attention_head_dim": 16, "num_attention_heads": 2,
        }  # fmt: skip
        head = LayerwiseFM_ActionHeader.LayerwiseFlowmatchingActionHead
        LayerwiseFM_ActionHeader.DiTConfig.update(shape)
    action_model = OmegaConf.create({**SETTINGS, "diffusion_model_cfg": shape})
    config = SimpleNamespace(
        framework=SimpleNamespace(
            action_model=action_model,
            qwenvl=SimpleNamespace(vl_hidden_dim=32, num_vl_layers=2),
        )
    )
    return Framework(spread_out(head(config)), 2 if kind == "Layerwise" else 0, masked)


class HeadTests:
    """For a class in each version's file, which says `NAME` and provides the fixture `framework`."""

    NAME: str

    @pytest.mark.parametrize("with_state", [True, False])
    @pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
    def test_candidates_are_single_calls(
        self, framework: Framework, record: Callable[..., None], rows: int, k: int, with_state: bool
    ) -> None:
        predict = partial(framework.predict_action, rows, with_state)
        for path in ("plain", "fast"):
            found = contract.largest_difference(framework, predict, k, path)
            record(self.NAME, "candidates", found)
            assert found < 1e-5

    def test_fewer_steps(self, framework: Framework, record: Callable[..., None]) -> None:
        few = copy.deepcopy(framework)
        few.action_model.num_inference_timesteps = 2
        for path in ("plain", "fast"):
            alone, asked = (partial(one.predict_action, 3, True) for one in (few, framework))
            found = contract.largest_difference(framework, asked, 4, path, alone, steps=2)
            record(self.NAME, "steps=2", found)
            assert found < 1e-5

    def test_one_candidate_is_untouched_and_nothing_is_left_behind(self, framework: Framework) -> None:
        contract.assert_one_is_untouched(framework, partial(framework.predict_action, 2, True))
        contract.assert_no_trace(framework, partial(framework.predict_action, 2, True))
