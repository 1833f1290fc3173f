"""DreamZero's own action head and transformer on a CPU, with small networks of ours as encoders.

CUDA's timers and device and FlashAttention are written into its code. The first two are replaced here, the third is torch's
attention.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import torch._dynamo
from groot_head import spread_out
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import keystone_robotics as keystone
from keystone_robotics import KeystoneError
from keystone_robotics.sample.families.dreamzero import upstream
from keystone_robotics.sample.families.dreamzero.upstream import memory_of, remember
from upstream_like import contract

NAME = "dreamzero"
CHANNELS, SIZE, BLOCK, HORIZON, DIMS, WORDS = 4, 4, 2, 6, 5, 7
REAL = keystone.ActionSpace(dims=DIMS, steps=HORIZON)


class OnCpu(TorchFunctionMode):
    """What is asked for on "cuda" is on the CPU, and what is asked for in bfloat16 is in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [torch.float32 if one is torch.bfloat16 else one for one in args]
        kwargs = {name: torch.float32 if one is torch.bfloat16 else one for name, one in (kwargs or {}).items()}
        return func(*args, **({**kwargs, "device": "cpu"} if kwargs.get("device") == "cuda" else kwargs))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 12)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.words(ids)


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1280)

    def encode_image(self, image: Tensor) -> Tensor:
        return self.linear(image.mean((1, 3, 4)))[:, None].expand(-1, 257, -1).contiguous()


class Video(nn.Module):
    """Four frames are one latent frame, after the first; eight pixels are one."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv3d(3, CHANNELS, (1, 8, 8), (4, 8, 8))

    def encode(self, video: Tensor, **_: Any) -> Tensor:
        return self.convolution(video)


@pytest.fixture(scope="module")
def head(checkout: Callable[..., Path]) -> Iterator[Any]:
    checkout(NAME)
    patch = pytest.MonkeyPatch()
    patch.setenv("ATTENTION_BACKEND", "torch")
    patch.setattr(torch.cuda, "Event", lambda **_: MagicMock(elapsed_time=lambda end: 0.0))
    patch.setattr(torch.cuda, "synchronize", lambda: None)
    torch._dynamo.config.disable = True  # its schedulers are compiled
    from groot.vla.model.dreamzero.action_head.wan_flow_matching_action_tf import WANPolicyHead
    from groot.vla.model.dreamzero.modules import wan2_1_submodule
    from groot.vla.model.dreamzero.modules.flow_match_scheduler import FlowMatchScheduler
    from groot.vla.model.dreamzero.modules.wan_video_dit_action_casual_chunk import CausalWanModel

    def attention(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        return nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    patch.setattr(wan2_1_submodule, "flash_attention", attention)

    class Head(WANPolicyHead):
        def __init__(self) -> None:
            nn.Module.__init__(self)  # its own constructor downloads the encoders

        def generate_noise(self, shape: Any, seed: Any = None, device: str = "cpu", **options: Any) -> Tensor:
            return super().generate_noise(shape, seed, "cpu", **options)

    torch.manual_seed(0)
    head = Head()
    head.text_encoder, head.image_encoder, head.vae = Text(), Image(), Video()
    head.model = CausalWanModel(
        model_type="i2v", frame_seqlen=(SIZE // 2) ** 2, text_len=WORDS, in_dim=2 * CHANNELS + 4, dim=32, ffn_dim=48,
        freq_dim=16, text_dim=12, out_dim=CHANNELS, num_heads=2, num_layers=2, max_chunk_size=2, num_frame_per_block=BLOCK,
        action_dim=DIMS, max_state_dim=3, hidden_size=16, num_action_per_block=HORIZON,
    )  # fmt: skip
    vars(head).update(
        num_inference_steps=4, seed=1140, cfg_scale=5.0, sigma_shift=5.0, kv_cache1=None, kv_cache_neg=None,
        crossattn_cache=None, crossattn_cache_neg=None, clip_feas=None, ys=None, current_start_frame=0, language=None,
        ip_rank=0, ip_size=1, dynamic_cache_schedule=False, trt_engine=None, _device="cpu", num_frames=9,
        num_frame_per_block=BLOCK, action_horizon=HORIZON, tiled=False, tile_size_height=34, tile_size_width=34,
        tile_stride_height=18, tile_stride_width=16, normalize_video=lambda video: 2 * video - 1,
        dit_step_mask=[step in (0, 1, 2, 6, 10, 13, 14, 15) for step in range(16)],
        scheduler=FlowMatchScheduler(shift=5, sigma_min=0.0, extra_one_step=True),
        config=SimpleNamespace(decouple_inference_noise=False, video_inference_final_noise=0.8),
    )  # fmt: skip
    yield spread_out(head)
    patch.undo()


def inputs(rows: int, frames: int, word: int = 1) -> Any:
    generator = torch.Generator().manual_seed(frames + rows)
    data = {
        "images": torch.randint(0, 256, (rows, frames, 8 * SIZE, 8 * SIZE, 3), generator=generator, dtype=torch.uint8),
        "state": torch.randn(rows, 1, 3, generator=generator),
        "embodiment_id": torch.zeros(rows, dtype=torch.long),
        "text": torch.full((rows, WORDS), word),
        "text_negative": torch.zeros(rows, WORDS, dtype=torch.long),
    }
    from transformers.feature_extraction_utils import BatchFeature

    mask = torch.ones(rows, WORDS, dtype=torch.long)
    return BatchFeature(data={**data, "text_attention_mask": mask, "text_attention_mask_negative": mask})


def predict(head: Any, rows: int, frames: int = 1) -> Tensor:
    """The next chunk: of a new episode with one frame, else of the one that the head remembers."""
    with torch.no_grad(), OnCpu():
        return head.lazy_joint_video_action(None, inputs(rows, frames))["action_pred"].float()


def predict_actions_first(head: Any, rows: int, frames: int = 1) -> Tensor:
    """The same, with the noise of the actions drawn before that of the video, as KeyStone draws."""
    actions = torch.randn(rows, HORIZON, DIMS)

    def draw(shape: Any, *args: Any, **kwargs: Any) -> Tensor:
        return actions if tuple(shape) == tuple(actions.shape) else torch.randn(shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "generate_noise", draw)
        return predict(head, rows, frames)


def started(head: Any, rows: int, frames: int) -> None:
    """An episode whose next observation has that many frames."""
    head.language = None
    if frames > 1:
        predict(head, rows)


def from_here(head: Any, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The call, always with what the head remembers now."""
    memory = memory_of(head)

    def again() -> Tensor:
        remember(head, memory)
        return call()

    return again


@pytest.mark.parametrize("frames", [1, 8])
@pytest.mark.parametrize(("rows", "k", "decoupled"), [(1, 4, False), (1, 16, True), (3, 4, False)])
def test_candidates_are_single_calls(
    head: Any, record: Callable[..., None], rows: int, k: int, decoupled: bool, frames: int
) -> None:
    head.config.decouple_inference_noise = decoupled
    started(head, rows, frames)
    call, alone = (from_here(head, partial(ask, head, rows, frames)) for ask in (predict, predict_actions_first))
    found = contract.largest_difference(head, call, k, alone=alone, space=REAL)
    record(NAME, "candidates", found)
    assert found < 1e-5


def test_fewer_steps(head: Any, record: Callable[..., None]) -> None:
    started(head, 1, 1)

    def alone() -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(head, "num_inference_steps", 2)
            return predict_actions_first(head, 1)

    call = from_here(head, partial(predict, head, 1))
    found = contract.largest_difference(head, call, 4, alone=from_here(head, alone), steps=2, space=REAL)
    record(NAME, "steps=2", found)
    assert found < 1e-5


def test_one_candidate_is_untouched_and_nothing_is_left_behind(head: Any) -> None:
    started(head, 2, 8)
    call = from_here(head, partial(predict, head, 2, 8))
    contract.assert_one_is_untouched(head, call, space=REAL)
    contract.assert_no_trace(head, call, space=REAL)


def test_an_episode_is_remembered_as_one_call_remembers_it(head: Any) -> None:
    """Three observations with four candidates each, and three without KeyStone: the same cache and the same frame."""
    remembered = []
    for k in (1, 4):
        keystone.attach(head, k=k, space=REAL)
        try:
            started(head, 1, 1)
            for frames in (1, 8, 8):
                predict(head, 1, frames)
                remembered.append((head.current_start_frame, [layer.clone() for layer in head.kv_cache1]))
        finally:
            keystone.detach(head)
    for (frame, alone), (after, layers) in zip(remembered[:3], remembered[3:], strict=True):
        assert frame == after
        torch.testing.assert_close(alone, layers)


def test_the_video_is_that_of_the_selected_candidate(head: Any) -> None:
    rounds: list[Any] = []
    keystone.attach(head, k=4, check=False, space=REAL).subscribe(rounds.append)
    started(head, 2, 1)
    try:
        with torch.no_grad(), OnCpu(), contract.recorded(upstream, "denoise") as draws:
            output = head.lazy_joint_video_action(None, inputs(2, 1))
    finally:
        keystone.detach(head)
    assert output["video_pred"].shape == (2, CHANNELS, 1 + BLOCK, SIZE, SIZE)
    assert torch.equal(output["action_pred"], rounds[0].selection.chunk)
    ((drawn, _),) = draws
    videos = drawn["video_pred"].unflatten(0, (2, 4))
    assert len(videos.flatten(0, 1).unique(dim=0)) == 8
    expected = [videos[row, index] for row, index in enumerate(rounds[0].selection.index)]
    assert torch.equal(output["video_pred"], torch.stack(expected))


def test_what_cannot_run_k_wide_is_refused(head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, reason in [
        ("ip_size", 2, "two processes"), ("trt_engine", object(), "TensorRT"), ("dynamic_cache_schedule", True, "skips steps"),
    ]:  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(head, name, value)
            with pytest.raises(KeystoneError, match=reason):
                keystone.attach(head, k=4, space=REAL)
    with pytest.raises(KeystoneError, match="Missing: dims and steps"):
        keystone.attach(head, k=4)
