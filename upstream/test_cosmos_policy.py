"""Cosmos Policy's sampling: its own `generate_samples_from_batch`, sampler, noise and layout of actions.

The model around them needs CUDA: image encoder and network are small ones of ours.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

import keystone_robotics as keystone
from upstream_like import contract
from upstream_like.cosmos_policy_like import observation, parts

NAME = "cosmos-policy"


def stand_in(name: str, **values: Any) -> None:
    module = ModuleType(name)
    vars(module).update(values)
    sys.modules.setdefault(name, module)


@pytest.fixture(scope="module")
def model(checkout: Callable[..., Path]) -> Any:
    checkout(NAME)
    base = attrs.define(type("Config", (), {"__attrs_post_init__": lambda self: None}))
    own = "cosmos_policy._src"
    # What these modules import needs CUDA, or is for training.
    stand_in(f"{own}.predict2.models.text2world_model", DiffusionModel=nn.Module, Text2WorldModelConfig=base)
    stand_in("cosmos_policy.conditioner", Text2WorldCondition=object)
    stand_in(f"{own}.imaginaire.utils.context_parallel", broadcast_split_tensor=None, cat_outputs_cp=None)
    stand_in("wandb")
    for name in ("multistorageclient", "multistorageclient.types"):
        stand_in(name, **dict.fromkeys(("StorageClient", "StorageClientConfig", "Range"), object))
    import cosmos_policy.constants  # noqa: F401
    from cosmos_policy.models.policy_text2world_model import CosmosPolicyDiffusionModel
    from cosmos_policy.modules.cosmos_sampler import CosmosPolicySampler

    class Model(CosmosPolicyDiffusionModel):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.sampler, self.sde = CosmosPolicySampler(), SimpleNamespace(sigma_max=80.0, sigma_min=0.002)
            for name, value in parts().items():
                setattr(self, name, value)

        def get_data_and_condition(self, data_batch: Any) -> Any:
            return None, self.encoder(data_batch["video"]), None

        def get_x0_fn_from_batch(
            self, data_batch: Any, guidance: float, is_negative_prompt: bool = False, skip_vae_encoding: bool = False,
            previous_generated_latent: Any = None, return_orig_clean_latent_frames: bool = False,
        ) -> Any:  # fmt: skip
            x0 = previous_generated_latent if skip_vae_encoding else self.get_data_and_condition(data_batch)[1]
            x0_fn = partial(self.predict_x0, x0)
            return (x0_fn, x0.clone()) if return_orig_clean_latent_frames else x0_fn

        def predict_x0(self, condition: Tensor, noise_x: Tensor, sigma: Tensor) -> Tensor:
            return self.denoiser(condition, noise_x, sigma)

        def _normalize_video_databatch_inplace(self, data_batch: Any) -> None: ...

        def _augment_image_dim_inplace(self, data_batch: Any) -> None: ...

        def is_image_batch(self, data_batch: Any) -> bool:
            return False

    torch.manual_seed(0)
    return Model().eval().requires_grad_(False)


def generate(model: Any, rows: int, steps: int = 5, seed: int = 1) -> Tensor:
    """The chunk, as the project's evaluation takes it from the latents."""
    from keystone_robotics.sample.families.cosmos_policy.upstream import actions_in

    batch = observation(rows)
    with torch.inference_mode():
        latents, frames = model.generate_samples_from_batch(
            batch, n_sample=rows, num_steps=steps, seed=seed, return_orig_clean_latent_frames=True
        )
    assert frames.shape == latents.shape
    return actions_in(latents, batch["action_latent_idx"])


def alone(model: Any, rows: int, steps: int = 5) -> Tensor:
    """With noise that can be replaced: the project's own comes from numpy."""
    from keystone_robotics.sample.families.cosmos_policy.upstream import actions_in

    batch = observation(rows)
    with torch.inference_mode():
        shape = model.encoder(batch["video"]).shape
        noise = torch.randn(shape) * model.sde.sigma_max
        latents = model.generate_samples_from_batch(batch, n_sample=rows, num_steps=steps, x_sigma_max=noise)
    return actions_in(latents, batch["action_latent_idx"])


@pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (2, 4)])
def test_candidates_are_single_calls(model: Any, record: Callable[..., None], rows: int, k: int) -> None:
    found = contract.largest_difference(model, partial(generate, model, rows), k, alone=partial(alone, model, rows))
    record(NAME, "candidates", found)
    assert found < 1e-5


def test_fewer_steps(model: Any, record: Callable[..., None]) -> None:
    expected = partial(alone, model, 2, steps=2)
    found = contract.largest_difference(model, partial(generate, model, 2), 4, alone=expected, steps=2)
    record(NAME, "steps=2", found)
    assert found < 1e-5


def test_one_candidate_is_untouched_and_nothing_is_left_behind(model: Any) -> None:
    contract.assert_one_is_untouched(model, partial(generate, model, 1))
    contract.assert_no_trace(model, partial(generate, model, 1))


def test_candidates_follow_from_the_seed_of_the_call(model: Any) -> None:
    rounds: list[Any] = []
    keystone.attach(model, k=4).subscribe(rounds.append)
    for seed in (1, 1, 2):
        generate(model, 1, seed=seed)
    keystone.detach(model)
    first, again, other = (one.candidates for one in rounds)
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any(dim=-1).any()


def test_actions_are_read_as_the_project_reads_them(model: Any) -> None:
    from cosmos_policy.models.policy_text2world_model import replace_latent_with_action_chunk

    from keystone_robotics.sample.families.cosmos_policy.upstream import actions_in

    latents, frame, chunk = torch.zeros(2, 4, 5, 16, 16), torch.tensor([3, 3]), torch.randn(2, 16, 7)
    written = replace_latent_with_action_chunk(latents, chunk, frame)
    assert torch.allclose(actions_in(written, frame), chunk, atol=1e-6)
