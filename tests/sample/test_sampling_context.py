"""How exact a round can be, and whom it waits for."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import keystone_robotics as keystone
from keystone_robotics.sample import context
from keystone_robotics.sample.context import coarsest_type
from keystone_robotics.sample.families.pi import denoiser as gemma
from keystone_robotics.sample.families.smolvla import denoiser as smolvla
from keystone_robotics.sample.timer import wait_for
from tiny import POLICIES


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings can be read without one, as they are in a new process; a product cannot be computed."""
    monkeypatch.setattr(context, "_product_dtype", lambda device: torch.float32)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # LeRobot's compiled policies set another
    yield
    torch.set_float32_matmul_precision(precision)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_as_torch_sets_it_up_multiplies_matrices_in_float32() -> None:
    assert coarsest_type([nn.Linear(2, 2)], torch.float32, "cuda") == torch.float32


@pytest.mark.usefixtures("gpu")
def test_a_gpu_as_torch_sets_it_up_convolves_in_tf32() -> None:
    network = nn.Sequential(nn.Conv1d(2, 2, 1), nn.Linear(2, 2))
    assert coarsest_type([network], torch.float32, "cuda") == torch.float16
    assert coarsest_type([network], torch.float32, "cpu") == torch.float32
    assert coarsest_type([network], torch.float32, "cuda", encoding=[]) == torch.float32, "no fast path convolves"


class Raises:
    """As torch's older setting does where the newer one was used."""

    def __init__(self, fp32_precision: str) -> None:
        self.fp32_precision = fp32_precision

    @property
    def allow_tf32(self) -> bool:
        raise RuntimeError("mix of the legacy and new APIs")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (SimpleNamespace(allow_tf32=True), torch.float16),
        (SimpleNamespace(allow_tf32=False), torch.float32),
        (Raises("tf32"), torch.float16),
        (Raises("ieee"), torch.float32),
        (Raises("none"), torch.float32),
    ],
)
def test_products_in_tf32_are_as_coarse_as_float16(
    setting: Any, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "matmul", setting)
    assert coarsest_type([nn.Linear(2, 2)], torch.float32, "cuda") == expected
    assert coarsest_type([nn.Linear(2, 2)], torch.float32, "cuda", encoding=[]) == expected


@pytest.mark.parametrize("name", ["smolvla", "pi0", "pi05"])
def test_coarse_weights_of_the_encoder_excuse_no_fast_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = POLICIES[name]
    policy = recipe.build().requires_grad_(False)
    adapter = keystone.attach(policy, k=4).engine.adapter
    keystone.detach(policy)
    for module in adapter.encoder_modules(policy):
        module.to(torch.bfloat16)
    steps = smolvla if name == "smolvla" else gemma
    denoise = steps.denoise
    for wrong, path in ((0.0, "fast"), (3e-3, "plain")):
        handle = keystone.attach(policy, k=4, seed=0)
        monkeypatch.setattr(steps, "denoise", lambda *args, factor=1 + wrong: factor * denoise(*args))
        recipe.predict(policy, recipe.batch(1))
        assert handle.path == path
        keystone.detach(policy)


def test_a_round_waits_for_its_own_stream_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Mock()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "synchronize", Mock(side_effect=AssertionError("others may have work to do")))
    wait_for(torch.device("cuda"))
    stream.synchronize.assert_called_once_with()
    wait_for(torch.device("cpu"))
    stream.synchronize.assert_called_once_with()
