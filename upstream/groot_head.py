"""Tiny action heads of Isaac-GR00T, what is put into them, and the tests of all its versions, which differ in little."""

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkouts import without
from torch import Tensor, nn
from transformers.feature_extraction_utils import BatchFeature

import keystone_robotics as keystone
from upstream_like import contract

WIDTH, TOKENS, HORIZON, DIMS = 32, 9, 6, 12
REAL = keystone.ActionSpace(dims=7, steps=4)
TRANSFORMER = {
    "num_layers": 4, "num_attention_heads": 2, "attention_head_dim": 16, "output_dim": 24, "dropout": 0.2,
    "norm_type": "ada_norm", "final_dropout": True, "interleave_self_attention": True, "positional_embeddings": None,
}  # fmt: skip
HEAD = {
    "hidden_size": 24, "input_embedding_dim": WIDTH, "backbone_embedding_dim": 20, "max_state_dim": 10,
    "max_num_embodiments": 3, "max_seq_len": 64, "num_inference_timesteps": 4, "action_horizon": HORIZON,
}  # fmt: skip


class Backbone(nn.Module):
    """In the place of the vision-language model: the same fields."""

    def forward(self, inputs: Any) -> BatchFeature:
        generator = torch.Generator().manual_seed(5)
        rows = inputs["state"].shape[0]
        return BatchFeature(
            data={
                "backbone_features": torch.randn(rows, TOKENS, 20, generator=generator),
                "backbone_attention_mask": torch.arange(TOKENS).expand(rows, -1) < 8,
                "image_mask": torch.arange(TOKENS).expand(rows, -1) < 5,
            }
        )


class Model(nn.Module):
    """Backbone and head, put together as in Isaac-GR00T."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.action_head = Backbone(), head

    def get_action(self, inputs: Any, *options: Any) -> BatchFeature:
        action_input = BatchFeature(data=dict(inputs))
        return self.action_head.get_action(self.backbone(inputs), action_input, *options)


def spread_out(head: nn.Module) -> nn.Module:
    """Weights that are zero at the beginning would make a test of nothing."""
    generator = torch.Generator().manual_seed(0)
    for weight in head.parameters():
        size = max(weight.shape[-2:]) ** -0.5 if weight.ndim > 1 else 0.2
        weight.data = size * torch.randn(weight.shape, generator=generator)
    return head.eval().requires_grad_(False)


def build_n1d5() -> Model:
    without(
        "pytorch3d", "pytorch3d.transforms"
    )  # imported for rotations in data, and without a package for this Python
    from gr00t.model.action_head.flow_matching_action_head import FlowmatchingActionHead, FlowmatchingActionHeadConfig

    config = FlowmatchingActionHeadConfig(
        **HEAD,
        add_pos_embed=True,
        action_dim=DIMS,
        diffusion_model_cfg={**TRANSFORMER, "cross_attention_dim": 20},
        vl_self_attention_cfg={"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 10, "dropout": 0.2},
        num_target_vision_tokens=4,
        noise_beta_alpha=1.5,
        noise_beta_beta=1.0,
        noise_s=0.999,
        num_timestep_buckets=1000,
        tune_projector=True,
        tune_diffusion_model=True,
        use_vlln=True,
    )
    return Model(spread_out(FlowmatchingActionHead(config)))


def build_n1d6(transformer: str) -> Model:
    from gr00t.configs.model.gr00t_n1d6 import Gr00tN1d6Config
    from gr00t.model.gr00t_n1d6.gr00t_n1d6 import Gr00tN1d6ActionHead

    return Model(spread_out(Gr00tN1d6ActionHead(Gr00tN1d6Config(**_settings(transformer)))))


def build_n1d7(transformer: str) -> Model:
    from gr00t.configs.model.gr00t_n1d7 import Gr00tN1d7Config
    from gr00t.model.gr00t_n1d7.gr00t_n1d7 import Gr00tN1d7ActionHead

    return Model(spread_out(Gr00tN1d7ActionHead(Gr00tN1d7Config(**_settings(transformer)))))


def _settings(transformer: str) -> dict[str, Any]:
    return {
        **HEAD,
        "max_action_dim": DIMS,
        "diffusion_model_cfg": TRANSFORMER,
        "use_alternate_vl_dit": transformer == "AlternateVLDiT",
    }


def inputs(rows: int, state_steps: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return {
        "state": torch.randn(rows, state_steps, 10, generator=generator),
        "embodiment_id": torch.arange(rows) % 3,
    }


def policy(policy_class: type, model: nn.Module, modality_config: type) -> Any:
    """A Gr00tPolicy of theirs without its checkpoint: a robot of 3 + 4 dimensions that decodes four steps."""
    made = policy_class.__new__(policy_class)
    made.model, made.embodiment_tag = model, SimpleNamespace(value="robot")
    made.modality_configs = {"action": modality_config(delta_indices=[0, 1, 2, 3], modality_keys=["arm", "hand"])}
    known = {"arm": {"dim": np.array(3)}, "hand": {"dim": np.array(4)}, "unused": {"dim": np.array(5)}}
    made.processor = SimpleNamespace(state_action_processor=SimpleNamespace(norm_params={"robot": {"action": known}}))
    return made


def predict(model: Any, rows: int) -> Tensor:
    return model.get_action(inputs(rows))["action_pred"]


class HeadTests:
    """For a class in each version's file, which says `NAME` and provides the fixture `model`."""

    NAME: str

    @pytest.mark.parametrize("path", ["plain", "fast"])
    @pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
    def test_candidates_are_single_calls(
        self, model: Any, record: Callable[..., None], rows: int, k: int, path: str
    ) -> None:
        found = contract.largest_difference(model, partial(predict, model, rows), k, path, space=REAL)
        record(self.NAME, "candidates", found)
        assert found < 1e-5

    @pytest.mark.parametrize("path", ["plain", "fast"])
    def test_fewer_steps(self, model: Any, record: Callable[..., None], path: str) -> None:
        few = copy.deepcopy(model)
        few.action_head.num_inference_timesteps = 2
        alone, asked = partial(predict, few, 3), partial(predict, model, 3)
        found = contract.largest_difference(model, asked, 4, path, alone, steps=2, space=REAL)
        record(self.NAME, "steps=2", found)
        assert found < 1e-5

    def test_one_candidate_is_untouched_and_nothing_is_left_behind(self, model: Any) -> None:
        contract.assert_one_is_untouched(model, partial(predict, model, 2), space=REAL)
        contract.assert_no_trace(model, partial(predict, model, 2), space=REAL)


class PolicyTests:
    """For versions with a `Gr00tPolicy` that tells what its processor decodes."""

    def test_a_policy_knows_its_robot(self, model: Any) -> None:
        from gr00t.data.types import ModalityConfig
        from gr00t.policy.gr00t_policy import Gr00tPolicy

        holder = policy(Gr00tPolicy, model, ModalityConfig)
        handle = keystone.attach(holder, k=4)
        try:
            window = handle.engine.adapter.window(holder)
            assert (handle.adapter, window.dims, window.steps) == ("isaac-groot", 7, 4)
            predict(model, 1)
            assert handle.stats["rounds"] == 1
        finally:
            keystone.detach(holder)


class RealTimeChunkingTests:
    """For versions that take the overlap with a previous chunk."""

    NAME: str

    @pytest.mark.parametrize("path", ["plain", "fast"])
    @pytest.mark.parametrize("k", [4, 16])
    def test_real_time_chunking(self, model: Any, record: Callable[..., None], k: int, path: str) -> None:
        given = inputs(2)
        given["action"] = torch.randn(2, HORIZON, DIMS, generator=torch.Generator().manual_seed(1))
        options = {"action_horizon": 5, "rtc_overlap_steps": 4, "rtc_frozen_steps": 2, "rtc_ramp_rate": 3.0}

        def predict_on() -> Tensor:
            return model.get_action(given, options)["action_pred"]

        found = contract.largest_difference(model, predict_on, k, path, space=REAL)
        record(self.NAME, "real-time chunking", found)
        assert found < 1e-5
