"""Cosmos Policy's own model, conditions and sampler, with small networks of ours where its own need CUDA."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn

from upstream_like import contract

NAME = "cosmos-policy"
CHANNELS, FRAMES, SIZE, WIDTH, STEPS, DIMS = 4, 6, 8, 5, 16, 7
PROPRIO_FRAME, ACTION_FRAME, VALUE_FRAME = 1, 3, 5

#: Packages, and parts of the project, that its sampling never reaches: training, storage, text and video encoders.
PACKAGES = ("megatron", "dill", "cloudpickle", "pynvml", "wandb", "straggler")
PARTS = tuple(
    f"cosmos_policy._src.{name}"
    for name in (
        "imaginaire.utils.checkpointer", "imaginaire.utils.easy_io", "imaginaire.utils.fsdp_helper",
        "imaginaire.utils.optim_instantiate", "predict2.models.fm_solvers_unipc", "predict2.models.video2world_wan2pt1_model",
        "predict2.networks.clip", "predict2.networks.model_weights_stats", "predict2.text_encoders.text_encoder",
        "predict2.tokenizers.base_vae", "predict2.utils.dtensor_helper",
    )
)  # fmt: skip


class Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports these modules, and what is in them, as objects that accept anything."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.startswith(PARTS) or name.partition(".")[0] in PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return MagicMock(name=spec.name, __path__=[], __name__=spec.name, __spec__=spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "megatron.core.parallel_state":
            module.is_initialized = lambda: False  # type: ignore[attr-defined]


class Encoder(nn.Module):
    """In the place of the video encoder."""

    latent_ch, spatial_compression_factor = CHANNELS, 2

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv3d(3, CHANNELS, (1, 2, 2), (1, 2, 2))

    def encode(self, video: Tensor) -> Tensor:
        return self.convolution(video)

    def get_latent_num_frames(self, frames: int) -> int:
        return frames

    get_pixel_num_frames = get_latent_num_frames


class Network(nn.Module):
    """In the place of the transformer: reads the text, the frames, their mask and the noise level."""

    is_context_parallel_enabled = False

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv3d(CHANNELS + 2, CHANNELS, 3, padding=1)
        self.text = nn.Linear(WIDTH, CHANNELS)

    def disable_context_parallel(self) -> None:
        pass

    def forward(
        self, x_B_C_T_H_W: Tensor, timesteps_B_T: Tensor, crossattn_emb: Tensor,
        condition_video_input_mask_B_C_T_H_W: Tensor, **_: Any,
    ) -> Tensor:  # fmt: skip
        time = timesteps_B_T[:, None, :, None, None].expand(-1, 1, FRAMES, SIZE, SIZE)
        inputs = torch.cat([x_B_C_T_H_W, condition_video_input_mask_B_C_T_H_W, time], 1)
        text = self.text(crossattn_emb).mean(1)[:, :, None, None, None]
        return self.convolution(inputs).tanh() + 0.3 * text


@pytest.fixture(scope="module", params=["edm", "rectified_flow"])
def model(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME)
    sys.meta_path.insert(0, Replaced())
    import cosmos_policy.constants
    from cosmos_policy._src.imaginaire.lazy_config import LazyCall
    from cosmos_policy.config.conditioner.video2world_conditioner import Video2WorldCondition
    from cosmos_policy.models.policy_video2world_model import (
        CosmosPolicyVideo2WorldConfig,
        CosmosPolicyVideo2WorldModel,
    )

    class Conditioner(nn.Module):
        """In the place of the text's dropout in training."""

        def forward(self, data_batch: dict[str, Any]) -> Any:
            return Video2WorldCondition(crossattn_emb=data_batch["t5_text_embeddings"], use_video_condition=True)

        def get_condition_uncondition(self, data_batch: dict[str, Any]) -> Any:
            return self(data_batch), None

    class OnCpu(CosmosPolicyVideo2WorldModel):
        def set_up_model(self) -> None:
            self.tensor_kwargs = {"device": "cpu", "dtype": torch.float32}
            self.conditioner, self.net = Conditioner(), Network()

    torch.manual_seed(0)
    assert (cosmos_policy.constants.NUM_ACTIONS_CHUNK, cosmos_policy.constants.ACTION_DIM) == (STEPS, DIMS)
    config = CosmosPolicyVideo2WorldConfig(
        tokenizer=LazyCall(Encoder)(),
        state_ch=CHANNELS,
        state_t=FRAMES,
        precision="float32",
        scaling=request.param,
        sigma_data=1.0 if request.param == "rectified_flow" else 0.5,
    )
    return OnCpu(config).eval().requires_grad_(False)


def observation(rows: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(rows)
    video = torch.randint(0, 256, (rows, 3, FRAMES, 2 * SIZE, 2 * SIZE), generator=generator, dtype=torch.uint8)
    frames = {"current_proprio": PROPRIO_FRAME, "action": ACTION_FRAME, "value": VALUE_FRAME}
    return {
        "video": video,
        "t5_text_embeddings": torch.randn(rows, 3, WIDTH, generator=generator),
        "proprio": torch.randn(rows, 9, generator=generator),
        **{f"{name}_latent_idx": torch.full((rows,), frame) for name, frame in frames.items()},
    }


def chunk(latents: Tensor) -> Tensor:
    """As ``cosmos_utils.extract_action_chunk_from_latent_sequence``, a module that imports all of the project."""
    flat = latents[:, :, ACTION_FRAME].flatten(1)
    copies = flat.shape[1] // (STEPS * DIMS)
    return flat[:, : copies * STEPS * DIMS].view(len(latents), copies, STEPS, DIMS).mean(1)


def predict(model: Any, rows: int, **options: Any) -> Tensor:
    given = {"guidance": 0, "num_steps": 4, "n_sample": rows, "seed": 3, **options}
    return chunk(model.generate_samples_from_batch(observation(rows), **given))


def predict_from_torch(model: Any, rows: int, **options: Any) -> Tensor:
    """The same with noise that a test can replace, instead of numpy's."""
    noise = torch.randn(rows, CHANNELS, FRAMES, SIZE, SIZE) * model.sde.sigma_max
    return predict(model, rows, x_sigma_max=noise, **options)


@pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
def test_candidates_are_single_calls(model: Any, record: Callable[..., None], rows: int, k: int) -> None:
    alone = partial(predict_from_torch, model, rows)
    found = contract.largest_difference(model, partial(predict, model, rows), k, alone=alone)
    record(NAME, "candidates", found)
    assert found < 1e-5


def test_fewer_steps(model: Any, record: Callable[..., None]) -> None:
    alone = partial(predict_from_torch, model, 1, num_steps=2)
    found = contract.largest_difference(model, partial(predict, model, 1), 4, alone=alone, steps=2)
    record(NAME, "steps=2", found)
    assert found < 1e-5


def test_one_candidate_is_untouched_and_nothing_is_left_behind(model: Any) -> None:
    contract.assert_one_is_untouched(model, partial(predict, model, 2))
    contract.assert_no_trace(model, partial(predict, model, 2))


def test_images_are_encoded_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import keystone_robotics as keystone

    rows: list[int] = []
    own = model.tokenizer.encode
    monkeypatch.setattr(model.tokenizer, "encode", lambda video: rows.append(len(video)) or own(video))
    keystone.attach(model, k=8, check=False)
    try:
        predict(model, 2)
    finally:
        keystone.detach(model)
    assert rows == [2]
