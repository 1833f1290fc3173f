"""The real runners of RDT-1B and H-RDT with tiny random weights, and their tests."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from groot_head import spread_out
from torch import Tensor

import keystone_robotics as keystone
from upstream_like import contract

HORIZON, DIMS, REAL, WORDS, IMAGES = 6, 12, 7, 5, 9


def build_rdt(algorithm: str) -> Any:
    from diffusers import DPMSolverMultistepScheduler
    from models.rdt_runner import RDTRunner

    config = {
        "rdt": {"hidden_size": 32, "depth": 4, "num_heads": 2},
        "lang_adaptor": "mlp2x_gelu", "img_adaptor": "mlp2x_gelu", "state_adaptor": "mlp3x_gelu",
        "noise_scheduler": {
            "num_train_timesteps": 100, "num_inference_timesteps": 5, "beta_schedule": "squaredcos_cap_v2",
            "prediction_type": "sample", "clip_sample": False,
        },
    }  # fmt: skip
    runner = RDTRunner(
        action_dim=DIMS, pred_horizon=HORIZON, config=config, lang_token_dim=10, img_token_dim=11, state_token_dim=DIMS,
        max_lang_cond_len=8, img_cond_len=IMAGES, dtype=torch.float32,
    )  # fmt: skip
    scheduler = runner.noise_scheduler_sample
    runner.noise_scheduler_sample = DPMSolverMultistepScheduler.from_config(scheduler.config, algorithm_type=algorithm)
    return spread_out(runner)


def build_h_rdt(kv_heads: int | None, fused: bool) -> Any:
    from models.hrdt_runner import HRDTRunner

    config = {
        "hrdt": {
            "hidden_size": 32, "depth": 3, "num_heads": 4, "num_kv_heads": kv_heads, "norm_eps": 1e-5, "multiple_of": 16,
            "ffn_dim_multiplier": None, "output_size": DIMS, "use_flash_attn": fused,
        },
        "st_adaptor": "mlp3x_silu", "act_adaptor": "mlp3x_silu", "vision": {"feature_dim": 11}, "text": {"feature_dim": 10},
        "noise_scheduler": {"num_inference_timesteps": 5, "timestep_max": 0.999, "sampler_type": "uniform"},
        "time_noise": {"a": 5, "beta_m": 100},
    }  # fmt: skip
    runner = HRDTRunner(
        state_dim=DIMS, action_dim=DIMS, pred_horizon=HORIZON, config=config, max_img_len=IMAGES, max_lang_len=8,
        act_pos_emb_config=[("state", 1), ("action", HORIZON)], img_pos_emb_config=[("image", IMAGES)],
        lang_pos_emb_config=[("language", 8)], dtype=torch.float32,
    )  # fmt: skip
    return spread_out(runner)


def predict(runner: Any, rows: int, with_language: bool = True) -> Tensor:
    """With words that are masked in all rows, and in some."""
    generator, kind = torch.Generator().manual_seed(rows), next(runner.parameters()).dtype
    shapes = (rows, WORDS, 10), (rows, IMAGES, 11), (rows, 1, DIMS)
    words, images, state = (torch.randn(shape, generator=generator).to(kind) for shape in shapes)
    visible = torch.arange(WORDS) < 3 + torch.arange(rows)[:, None] % 2
    if not hasattr(runner, "adapt_conditions"):
        language = {"lang_tokens": words, "lang_attn_mask": visible} if with_language else {}
        return runner.predict_action(state_tokens=state, image_tokens=images, **language)
    mask = (torch.arange(DIMS) < REAL).to(kind).expand(rows, 1, -1)
    with torch.no_grad():
        return runner.predict_action(words, visible, images, state, mask, torch.arange(rows) + 10)


class RunnerTests:
    """For a class in each project's file, which says `NAME` and provides the fixture `runner`."""

    NAME: str

    @pytest.mark.parametrize("path", ["plain", "fast"])
    @pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
    def test_candidates_are_single_calls(
        self, runner: Any, record: Callable[..., None], rows: int, k: int, path: str
    ) -> None:
        found = contract.largest_difference(runner, partial(predict, runner, rows), k, path)
        record(self.NAME, "candidates", found)
        assert found < 1e-5

    @pytest.mark.parametrize("path", ["plain", "fast"])
    def test_fewer_steps(self, runner: Any, record: Callable[..., None], path: str) -> None:
        few = copy.deepcopy(runner)
        few.num_inference_timesteps = 2
        alone, asked = (partial(predict, one, 3) for one in (few, runner))
        found = contract.largest_difference(runner, asked, 4, path, alone=alone, steps=2)
        record(self.NAME, "steps=2", found)
        assert found < 1e-5

    def test_one_candidate_is_untouched_and_nothing_is_left_behind(self, runner: Any) -> None:
        contract.assert_one_is_untouched(runner, partial(predict, runner, 2))
        contract.assert_no_trace(runner, partial(predict, runner, 2))

    def test_bfloat16(self, runner: Any, record: Callable[..., None]) -> None:
        coarse = copy.deepcopy(runner).to(torch.bfloat16)
        for module in coarse.modules():
            if getattr(module, "dtype", None) is torch.float32:  # of the time's embedding
                module.dtype = torch.bfloat16
        handle = keystone.attach(coarse, k=4, seed=0, check="all")
        predict(coarse, 3)
        record(self.NAME, "bfloat16, of their size", handle.engine.finding.relative)
        assert (handle.path, handle.engine.finding.compared) == ("fast", 4)
