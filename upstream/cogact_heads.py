"""The real action models of CogACT, InternVLA-M1 and Dexbotic with tiny random weights, and their tests."""

import copy
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from groot_head import spread_out
from torch import Tensor, nn

import keystone_robotics as keystone
from upstream_like import contract

HORIZON, DIMS, WIDTH, STEPS = 6, 4, 32, 5


def build(module: str, name: str, width: int = WIDTH, **size: Any) -> nn.Module:
    """An action model of the named module, whose constructor calls the width of a token so."""
    code = importlib.import_module(module)
    code.DiT_models["tiny"] = partial(code.DiT, depth=2, num_heads=2, **size)
    head = code.ActionModel(
        model_type="tiny", in_channels=DIMS, future_action_window_size=HORIZON - 1, past_action_window_size=0,
        diffusion_steps=20, **{name: width},
    )  # fmt: skip
    return spread_out(head)


def without_packages(*names: str) -> None:
    """Empty packages, for those whose __init__ imports a vision-language model."""
    for name in names:
        folders = (Path(one, *name.split(".")) for one in sys.path)
        package = ModuleType(name)
        package.__path__ = [str(next(folder for folder in folders if folder.is_dir()))]
        sys.modules.setdefault(name, package)


class Framework(nn.Module):
    """In the place of the vision-language-action model: calls its action model as all three do."""

    def __init__(self, action_model: nn.Module, tokens: int, width: int = WIDTH) -> None:
        super().__init__()
        self.action_model, self.tokens, self.width = action_model, tokens, width

    def predict_action(self, rows: int, cfg_scale: float, use_ddim: bool = True, steps: int = STEPS) -> Tensor:
        head: Any = self.action_model
        features = torch.randn(rows, self.tokens, self.width, generator=torch.Generator().manual_seed(rows))
        noise = torch.randn(rows, HORIZON, head.in_channels)
        if cfg_scale > 1.0:
            noise = torch.cat([noise, noise], 0)
            uncondition = head.net.z_embedder.uncondition.unsqueeze(0).expand(rows, self.tokens, -1)
            model_kwargs: dict[str, Any] = {"z": torch.cat([features, uncondition], 0), "cfg_scale": cfg_scale}
            sample_fn = head.net.forward_with_cfg
        else:
            model_kwargs, sample_fn = {"z": features}, head.net.forward
        options = {"clip_denoised": False, "model_kwargs": model_kwargs, "progress": False, "device": features.device}
        if use_ddim:
            if head.ddim_diffusion is None:
                head.create_ddim(ddim_step=steps)
            samples = head.ddim_diffusion.ddim_sample_loop(sample_fn, noise.shape, noise, **options, eta=0.0)
        else:
            samples = head.diffusion.p_sample_loop(sample_fn, noise.shape, noise, **options)
        return samples.chunk(2, dim=0)[0] if cfg_scale > 1.0 else samples


class HeadTests:
    """For a class in each project's file, which says `NAME` and provides the fixture `framework`."""

    NAME: str

    @pytest.mark.parametrize("cfg_scale", [1.0, 1.5])
    @pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
    def test_candidates_are_single_calls(
        self, framework: Framework, record: Callable[..., None], rows: int, k: int, cfg_scale: float
    ) -> None:
        found = contract.largest_difference(framework, partial(framework.predict_action, rows, cfg_scale), k)
        record(self.NAME, "candidates", found)
        assert found < 1e-5

    @pytest.mark.parametrize("cfg_scale", [1.0, 1.5])
    def test_fewer_steps(self, framework: Framework, record: Callable[..., None], cfg_scale: float) -> None:
        few = copy.deepcopy(framework)
        few.action_model.ddim_diffusion = None
        asked = partial(framework.predict_action, 3, cfg_scale)
        alone = partial(few.predict_action, 3, cfg_scale, steps=2)
        found = contract.largest_difference(framework, asked, 4, alone=alone, steps=2)
        record(self.NAME, "steps=2", found)
        assert found < 1e-5

    @pytest.mark.parametrize("cfg_scale", [1.0, 1.5])
    def test_noise_at_every_step(self, framework: Framework, record: Callable[..., None], cfg_scale: float) -> None:
        handle = keystone.attach(framework, k=4, seed=0, check="all")
        framework.predict_action(3, cfg_scale, use_ddim=False)
        keystone.detach(framework)
        assert handle.engine.finding.compared == 4
        record(self.NAME, "DDPM, of their size", handle.engine.finding.relative)

    def test_one_candidate_is_untouched_and_nothing_is_left_behind(self, framework: Framework) -> None:
        predict = partial(framework.predict_action, 2, 1.5)
        contract.assert_one_is_untouched(framework, predict)
        contract.assert_no_trace(framework, predict)
