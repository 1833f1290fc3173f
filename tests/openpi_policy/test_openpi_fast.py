"""The fast path of openpi's PyTorch models: exact, taken where it can be, and left where the expert has other parts."""

import logging

import pytest
import torch
from openpi_toys import HORIZON, REAL_DIMS, Policy, TorchModel, observation, rows
from torch import nn

import keystone_robotics as keystone
from keystone_robotics.sample.families.pi.denoiser import denoise
from upstream_like import contract

K = 5


@pytest.fixture(params=[False, True], ids=["pi0", "pi05"])
def model(request):
    return TorchModel(pi05=request.param)


def candidates(model, batch, **options):
    """Those of one round, and on which path they were drawn; compared one by one with the model's own calls."""
    handle = keystone.attach(model, k=K, seed=0, check="all", space=keystone.ActionSpace(dims=REAL_DIMS), **options)
    rounds = []
    handle.subscribe(rounds.append)
    model.sample_actions("cpu", batch)
    keystone.detach(model)
    finding = handle.engine.finding
    assert (finding.compared, finding.problem) == (K, "")
    return rounds[0].candidates, finding, handle.path


@pytest.mark.parametrize("count", [1, 3])
def test_fast_plain_and_single_calls_are_the_same(model, count):
    batch = rows(count, torch.from_numpy)
    fast, found, path = candidates(model, batch)
    plain, _, other = candidates(model, batch, fast=False)
    assert (path, other) == ("fast", "plain")
    assert found.difference < 1e-5
    assert found.calls == {"embed_prefix": 1}
    assert fast.shape[:2] == (count, K)
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=0)


def test_what_the_time_decides_is_computed_for_observations_not_for_candidates():
    model = TorchModel(pi05=True)
    asked = []
    model.paligemma_with_expert.gemma_expert.model.norm.dense.register_forward_hook(
        lambda module, inputs, output: asked.append(len(output))
    )
    handle = keystone.attach(model, k=K, seed=0, space=keystone.ActionSpace(dims=REAL_DIMS))
    model.sample_actions("cpu", rows(3, torch.from_numpy))
    asked.clear()
    model.sample_actions("cpu", rows(3, torch.from_numpy))
    assert handle.path == "fast"
    assert asked == [3] * 10  # steps


def test_bfloat16_weights_with_norms_in_float32(model):
    model.paligemma_with_expert.to(torch.bfloat16)
    for name, part in model.named_modules():
        if name.endswith("norm"):
            part.float()
    _, found, path = candidates(model, rows(1, torch.from_numpy))
    assert path == "fast"
    assert 0 < found.difference < 5e-2


class OtherAttention(nn.Module):
    """Attention that does something of its own, of which its parts tell nothing."""

    def __init__(self, own):
        super().__init__()
        self.own, self.scaling, self.head_dim = own, own.scaling, own.head_dim
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = own.q_proj, own.k_proj, own.v_proj, own.o_proj

    def forward(self, *args):
        return 0.5 * self.own(*args)


def test_known_names_with_another_meaning_are_found_out(model, caplog):
    layer = model.paligemma_with_expert.gemma_expert.model.layers[1]
    layer.self_attn = OtherAttention(layer.self_attn)
    with caplog.at_level(logging.WARNING, "keystone"):
        _, _, path = candidates(model, rows(1, torch.from_numpy))
    assert path == "plain"
    assert "the fast path is not used" in caplog.text


@pytest.mark.parametrize("part", ["rotary_emb", "norm"])
def test_an_expert_without_a_part_is_left_to_its_own_code(model, part, caplog):
    expert = model.paligemma_with_expert.gemma_expert.model
    kind, kept = type(expert), getattr(expert, part)

    def forward(self, *args):  # has it, under another name
        setattr(self, part, kept)
        try:
            return kind.forward(self, *args)
        finally:
            delattr(self, part)

    expert.__class__ = type("OtherGemma", (kind,), {"forward": forward})
    delattr(expert, part)
    with caplog.at_level(logging.WARNING, "keystone"):
        _, _, path = candidates(model, rows(1, torch.from_numpy))
    assert path == "plain"
    assert "plain path: failed with AttributeError" in caplog.text


def test_one_candidate_never_goes_there(model, monkeypatch):
    monkeypatch.setattr("keystone_robotics.sample.families.pi.denoiser.prepare", lambda *args: pytest.fail("fast path"))
    handle = keystone.attach(model, k=1, space=keystone.ActionSpace(dims=REAL_DIMS))
    assert model.sample_actions("cpu", rows(1, torch.from_numpy)).shape[1] == HORIZON
    assert handle.stats["rounds"] == 0


@pytest.mark.parametrize("fast", [True, False])
def test_the_step_can_be_compiled(fast, monkeypatch):
    compiled, own = [], torch.compile
    torch.compiler.reset()  # what other files compiled of the same functions is not looked through

    def compiler(function, **options):  # without inductor, which takes its time
        compiled.append(function)
        return own(function, backend="eager")

    monkeypatch.setattr(torch, "compile", compiler)
    policy = Policy(TorchModel(pi05=True), num_steps=2)
    handle = keystone.attach(policy, k=K, seed=0, check="all", compile=True, fast=fast)
    policy.infer(observation())
    assert handle.path == ("fast" if fast else "plain")
    assert (denoise in compiled) == fast
    assert len(compiled) == 2  # the other is a probe of the compiler
    assert handle.engine.finding.difference < 1e-5


def test_the_path_is_the_same_however_it_is_attached_to(model, monkeypatch, tmp_path):
    monkeypatch.setenv("KEYSTONE_PROFILES", str(tmp_path))
    monkeypatch.setattr("keystone_robotics.profiling.auto.KS", (1, 4))
    batch = rows(1, torch.from_numpy)
    found = contract.paths(
        model, lambda: model.sample_actions("cpu", batch), space=keystone.ActionSpace(dims=REAL_DIMS)
    )
    assert found == {"given": "fast", "auto": "fast", "profile": "fast"}
