"""Cosmos Policy's own model, conditions, sampler, transformer and video encoder, tiny and on a CPU.

Of the packages that need CUDA, TransformerEngine is reached: torch has its RMSNorm, and its rotary embedding is below.
"""

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
CHANNELS, FRAMES, SIZE, WIDTH, STEPS, DIMS = 16, 6, 4, 5, 16, 7
PROPRIO_FRAME, ACTION_FRAME, VALUE_FRAME = 1, 3, 5

#: Packages, and parts of the project, that its sampling never reaches: training, storage, text encoders.
PACKAGES = ("megatron", "dill", "cloudpickle", "pynvml", "wandb", "straggler", "transformer_engine")
PARTS = tuple(
    f"cosmos_policy._src.{name}"
    for name in (
        "imaginaire.attention", "imaginaire.utils.checkpointer", "imaginaire.utils.easy_io", "imaginaire.utils.fsdp_helper",
        "imaginaire.utils.optim_instantiate", "predict2.models.fm_solvers_unipc", "predict2.models.video2world_wan2pt1_model",
        "predict2.networks.clip", "predict2.text_encoders.text_encoder",
        "predict2.tokenizers.base_vae", "predict2.utils.dtensor_helper",
    )
)  # fmt: skip


#: The transformer of their configuration cosmos_v1_2B, tiny, with its attention in torch.
SHAPE = {
    "max_img_h": 240, "max_img_w": 240, "max_frames": 128, "in_channels": CHANNELS, "out_channels": CHANNELS,
    "patch_spatial": 2, "patch_temporal": 1, "model_channels": 32, "num_blocks": 2, "num_heads": 2,
    "crossattn_emb_channels": WIDTH, "pos_emb_cls": "rope3d", "use_adaln_lora": True, "adaln_lora_dim": 8,
    "atten_backend": "torch",
}  # fmt: skip


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
        if module.__name__ == "transformer_engine":
            module.__version__ = "2.8.0"  # type: ignore[attr-defined]
        if module.__name__ == "transformer_engine.pytorch":
            module.RMSNorm = nn.RMSNorm  # type: ignore[attr-defined]
        if module.__name__ == "transformer_engine.pytorch.attention.rope":
            module.apply_rotary_pos_emb = rotated  # type: ignore[attr-defined]


def rotated(x: Tensor, angles: Tensor, **_: Any) -> Tensor:
    """x (B, S, H, D) and angles (S, 1, 1, D)."""
    angles = angles[:, 0].to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


@pytest.fixture(scope="module", params=["edm", "rectified_flow"])
def model(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME)
    sys.meta_path.insert(0, Replaced())
    import cosmos_policy.constants
    from cosmos_policy._src.imaginaire.lazy_config import LazyCall
    from cosmos_policy._src.predict2.networks.minimal_v1_lvg_dit import MinimalV1LVGDiT
    from cosmos_policy._src.predict2.tokenizers import wan2pt1
    from cosmos_policy.config.conditioner.video2world_conditioner import Video2WorldCondition
    from cosmos_policy.models.policy_video2world_model import (
        CosmosPolicyVideo2WorldConfig,
        CosmosPolicyVideo2WorldModel,
    )

    class Encoder(nn.Module):
        """Their encoder, eight channels wide, instead of their interface to it, which loads it onto a GPU."""

        latent_ch, spatial_compression_factor = CHANNELS, wan2pt1.WanVAE.spatial_compression_factor.fget(None)
        get_latent_num_frames = wan2pt1.Wan2pt1VAEInterface.get_latent_num_frames
        get_pixel_num_frames = wan2pt1.Wan2pt1VAEInterface.get_pixel_num_frames

        def __init__(self) -> None:
            super().__init__()
            self.model = wan2pt1.WanVAE_(
                dim=8, z_dim=CHANNELS, num_res_blocks=1, temperal_downsample=[False, True, True]
            )

        def encode(self, video: Tensor) -> Tensor:
            return self.model.encode(video, (0.0, 1.0))

    class Transformer(MinimalV1LVGDiT):
        def disable_context_parallel(self) -> None:
            """Theirs makes a stream of CUDA's."""

    class Conditioner(nn.Module):
        """In the place of the text's dropout in training."""

        def forward(self, data_batch: dict[str, Any]) -> Any:
            return Video2WorldCondition(
                crossattn_emb=data_batch["t5_text_embeddings"],
                fps=data_batch["fps"],
                padding_mask=data_batch["padding_mask"],
                use_video_condition=True,
            )

        def get_condition_uncondition(self, data_batch: dict[str, Any]) -> Any:
            return self(data_batch), None

    class OnCpu(CosmosPolicyVideo2WorldModel):
        def set_up_model(self) -> None:
            self.tensor_kwargs = {"device": "cpu", "dtype": torch.float32}
            self.conditioner, self.net = Conditioner(), Transformer(**SHAPE)
            with torch.no_grad():
                for parameter in self.net.parameters():  # gates and the last layer start at zero
                    parameter.add_(0.1 * torch.randn(parameter.shape))

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
    shape = (rows, 3, 4 * FRAMES - 3, 8 * SIZE, 8 * SIZE)
    video = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    frames = {"current_proprio": PROPRIO_FRAME, "action": ACTION_FRAME, "value": VALUE_FRAME}
    return {
        "video": video,
        "t5_text_embeddings": torch.randn(rows, 3, WIDTH, generator=generator),
        "proprio": torch.randn(rows, 9, generator=generator),
        "fps": torch.full((rows,), 16.0),
        "padding_mask": torch.zeros(rows, 1, 8 * SIZE, 8 * SIZE),
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
