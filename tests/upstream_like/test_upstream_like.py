"""The adapters for other projects' own code, on small models of ours with the same methods. The real code: upstream/."""

import contextlib
import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import keystone_robotics as keystone
from keystone_robotics import ActionSpace, KeystoneError
from keystone_robotics.handle import RoundEvent
from keystone_robotics.profiling.fingerprint import fingerprint_architecture
from keystone_robotics.sample.noise import FixedNoise

from . import (
    cogact_like,
    contract,
    diffusion_like,
    fastwam_like,
    groot_like,
    openvla_oft_like,
    rdt_like,
    starvla_like,
    xvla_like,
)

REAL = {"space": ActionSpace(dims=7, steps=8)}


@dataclass(frozen=True)
class Case:
    """A model, how to ask it, what its adapter must be told, and the methods that encode an observation."""

    adapter: str
    build: Callable[[], Any]
    predict: Callable[[Any, int], Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    encoders: Callable[[Any], list[tuple[Any, str]]] = lambda model: []
    batches: tuple[tuple[int, int], ...] = ((1, 6), (3, 3))


def _groot(head: type) -> Case:
    return Case(
        "isaac-groot", lambda: groot_like.Model(head()), groot_like.predict, REAL,
        lambda model: [(model.backbone, "forward"), (model.action_head, "process_backbone_output")],
    )  # fmt: skip


def _starvla(head: type, network: type, **options: Any) -> Case:
    return Case(
        "starvla", lambda: starvla_like.Framework(head(network), **options), starvla_like.predict,
        encoders=lambda framework: [(framework, "encode")],
    )  # fmt: skip


def _xvla(arms: type, **options: Any) -> Case:
    return Case(
        "x-vla", lambda: xvla_like.XVLALike(arms()), xvla_like.predict, options, lambda model: [(model, "forward_vlm")]
    )


def _fastwam(seed: int | None) -> Case:
    return Case(
        "fast-wam", fastwam_like.FastWAMLike, partial(fastwam_like.predict, seed=seed),
        encoders=lambda model: [(model, "_encode_input_image_latents_tensor"), (model.mot, "prefill_video_cache")],
        batches=((1, 6),),
    )  # fmt: skip


def _diffusion(kind: type, scheduler: type, **options: Any) -> Case:
    return Case(
        "diffusion-policy", lambda: kind(scheduler(), **options), diffusion_like.predict,
        encoders=lambda policy: [(policy.obs_encoder, "forward")] if hasattr(policy, "obs_encoder") else [],
    )  # fmt: skip


def _cogact(**options: Any) -> Case:
    return Case(
        "cogact", cogact_like.Framework, partial(cogact_like.predict, **options),
        encoders=lambda framework: [(framework, "encode")],
    )  # fmt: skip


def _rdt(adapter: str, runner: type, *encoders: str, **options: Any) -> Case:
    def methods(model: Any) -> list[tuple[Any, str]]:
        return [(getattr(model, name), "forward") for name in encoders]

    return Case(adapter, runner, partial(rdt_like.predict, **options), encoders=methods)


CASES = {
    "groot-n1.5": _groot(groot_like.Head15),
    "groot-n1.6": _groot(groot_like.Head16),
    "groot-n1.7": _groot(groot_like.Head17),
    "starvla": _starvla(starvla_like.MaskedHead, starvla_like.Network, masked=True),
    "starvla-without-state": _starvla(starvla_like.MaskedHead, starvla_like.Network, with_state=False),
    "starvla-before-masks": _starvla(starvla_like.OldHead, starvla_like.Network),
    "starvla-layerwise": _starvla(starvla_like.LayerwiseHead, starvla_like.LayerNetwork, layers=True, masked=True),
    "starvla-layerwise-before": _starvla(starvla_like.OldLayerwiseHead, starvla_like.OldLayerNetwork, layers=True),
    "xvla": _xvla(xvla_like.TwoArms, space=ActionSpace(dims=10)),
    "xvla-auto": _xvla(xvla_like.Auto),
    "fastwam": _fastwam(None),
    "fastwam-with-a-seed": _fastwam(42),
    "diffusion-unet": _diffusion(diffusion_like.UnetLike, diffusion_like.DDPMScheduler),
    "diffusion-unet-inpainting": _diffusion(diffusion_like.UnetLike, diffusion_like.DDIMScheduler, inpaint=True),
    "diffusion-transformer": _diffusion(diffusion_like.TransformerLike, diffusion_like.DDIMScheduler),
    "dp3": _diffusion(diffusion_like.DP3Like, diffusion_like.DDIMScheduler),
    "cogact": _cogact(cfg_scale=1.5),
    "cogact-without-guidance": _cogact(cfg_scale=1.0),
    "rdt": _rdt("rdt", rdt_like.RDTRunner, "lang_adaptor", "img_adaptor"),
    "h-rdt": _rdt("h-rdt", rdt_like.HRDTRunner, "lang_adapter", "img_adapter"),
    "h-rdt-without-language": _rdt("h-rdt", rdt_like.HRDTRunner, "img_adapter", language=False),
    "openvla-oft": Case(
        "openvla-oft",
        openvla_oft_like.Robot,
        openvla_oft_like.predict,
        encoders=lambda robot: [(robot.model, "_process_vision_features")],
        batches=((1, 6),),
    ),
}

#: Those whose networks a fast path knows; the toys of the others have networks of their own.
FAST = ("fastwam", "fastwam-with-a-seed", "rdt", "h-rdt", "h-rdt-without-language")


@cache
def built(name: str) -> Any:
    torch.manual_seed(0)
    return CASES[name].build().eval().requires_grad_(False)


class FewSteps:
    """A model whose caller asks for that many steps."""

    def __init__(self, model: Any, method: str, argument: str, steps: int) -> None:
        own = getattr(model, method)

        def ask(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(own).bind(*args, **kwargs)
            bound.arguments[argument] = steps
            return own(*bound.args, **bound.kwargs)

        setattr(model, method, ask)


@cache
def with_steps(name: str, steps: int) -> Any:
    """The same model, with that number of steps in its settings, or from its caller."""
    model = copy.deepcopy(built(name))
    head = getattr(model, "action_head", None) or getattr(model, "action_model", None)
    if CASES[name].adapter == "cogact":
        head.create_ddim(steps)
    elif head is not None:
        head.num_inference_timesteps = steps
    elif CASES[name].adapter == "diffusion-policy":
        model.num_inference_steps = steps
    elif CASES[name].adapter == "openvla-oft":
        model.head.noise_scheduler.set_timesteps(steps)
    elif CASES[name].adapter in ("rdt", "h-rdt"):
        model.num_inference_timesteps = steps
    elif CASES[name].adapter == "x-vla":
        FewSteps(model, "generate_actions", "steps", steps)
    else:
        FewSteps(model, "infer_action", "num_inference_steps", steps)
    return model


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Any:
    """The case's name; its model is never attached at the beginning of a test."""
    yield request.param
    keystone.detach(built(request.param))


def asked(name: str, rows: int = 1) -> Callable[[], Tensor]:
    return partial(CASES[name].predict, built(name), rows)


def rounds_of(handle: Any) -> list[RoundEvent]:
    rounds: list[RoundEvent] = []
    handle.subscribe(rounds.append)
    return rounds


@pytest.mark.parametrize(
    ("name", "rows", "k"), [(name, *batch) for name, case in CASES.items() for batch in case.batches]
)
def test_candidates_are_single_calls(name: str, rows: int, k: int) -> None:
    assert contract.largest_difference(built(name), asked(name, rows), k, **CASES[name].options) < 1e-5


@pytest.mark.parametrize(("name", "rows", "k"), [(name, *batch) for name in FAST for batch in CASES[name].batches])
def test_candidates_of_the_fast_path_are_single_calls(name: str, rows: int, k: int) -> None:
    assert contract.largest_difference(built(name), asked(name, rows), k, "fast") < 1e-5


@pytest.mark.parametrize("case", ["groot-n1.6", "xvla", "fastwam", "rdt", "h-rdt"], indirect=True)
def test_the_path_is_the_same_however_it_is_attached_to(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KEYSTONE_PROFILES", str(tmp_path))
    monkeypatch.setattr("keystone_robotics.profiling.auto.KS", (1, 4))
    path = "fast" if case in FAST else "plain"
    assert contract.paths(built(case), asked(case), **CASES[case].options) == dict.fromkeys(
        ("given", "auto", "profile"), path
    )


@pytest.mark.parametrize("path", ["plain", "fast"])
def test_a_compiled_step_of_fast_wam_draws_the_same(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_step = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: compile_step(function, backend="eager"))
    found = contract.largest_difference(built("fastwam"), asked("fastwam"), 4, path, compile=True)
    assert found < 1e-5


def test_an_unknown_mixture_runs_as_it_is() -> None:
    torch.manual_seed(0)
    model = fastwam_like.WithOtherMoT().eval().requires_grad_(False)
    handle = keystone.attach(model, k=4, check="all")
    fastwam_like.predict(model, 1)
    assert handle.path == "plain"


def test_one_candidate_is_the_policy_itself(case: str) -> None:
    contract.assert_one_is_untouched(built(case), asked(case), **CASES[case].options)


@pytest.mark.parametrize("case", ["openvla-oft", "h-rdt", "cogact", "dp3"], indirect=True)
def test_kept_rounds_hold_no_candidates(case: str) -> None:
    contract.assert_kept_rounds_hold_no_candidates(built(case), asked(case), **CASES[case].options)


COMPILED = ("isaac-groot", "starvla", "fast-wam")


@pytest.mark.parametrize("name", {case.adapter: name for name, case in CASES.items()}.values())
def test_a_step_that_cannot_be_compiled_is_refused(name: str) -> None:
    """And never ignored: an adapter that takes compile= calls the compiler in its first round."""
    compiled: list[Any] = []

    def spy(function: Any, **_: Any) -> Any:
        compiled.append(function)
        return function

    with patch("torch.compile", spy):
        if CASES[name].adapter in COMPILED:
            keystone.attach(built(name), k=4, compile=True, **CASES[name].options)
            compiled.clear()  # the compiler was tried
            asked(name)()
            keystone.detach(built(name))
            assert compiled
        else:
            with pytest.raises(
                KeystoneError, match=f"compile=True: adapter {CASES[name].adapter} has no denoising step"
            ):
                keystone.attach(built(name), k=4, compile=True, **CASES[name].options)
            assert keystone.attached(built(name)) is None


def test_detaching_leaves_no_trace(case: str) -> None:
    contract.assert_no_trace(built(case), asked(case), **CASES[case].options)


@pytest.mark.parametrize("k", [1, 4])
def test_the_context_is_encoded_once(case: str, k: int) -> None:
    keystone.attach(built(case), k=k, check=False, **CASES[case].options)
    with contextlib.ExitStack() as stack:
        spies = [
            stack.enter_context(patch.object(part, name, wraps=getattr(part, name)))
            for part, name in CASES[case].encoders(built(case))
        ]
        asked(case)()
    assert [spy.call_count for spy in spies] == [1] * len(spies)


def test_the_self_check_refuses_a_loop_that_has_changed(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upstream that takes one step less, say, is found out in the first round."""
    model = built(case)
    adapter = keystone.attach(model, k=4, **CASES[case].options).engine.adapter
    ((_, seam),) = adapter.overrides(model)
    monkeypatch.setattr(f"{seam.__module__}.denoise", lambda model, noise, *args, **kwargs: 0.5 * noise)
    with pytest.raises(KeystoneError, match=r"self-check failed"):
        asked(case)()


def holders(name: str) -> dict[str, tuple[Any, Any]]:
    """From what a user may hold, to what of it must be found."""
    model = built(name)
    case = CASES[name]
    if case.adapter == "isaac-groot":
        policy = (groot_like.policy_of_15 if name == "groot-n1.5" else groot_like.policy)(model)
        return {
            "server": (SimpleNamespace(policy=SimpleNamespace(policy=policy)), policy),
            "policy": (policy, policy),
            "model": (model, model),
            "head": (model.action_head, model.action_head),
        }
    if case.adapter == "starvla":
        return {
            "server": (SimpleNamespace(_policy=SimpleNamespace(_framework=model)), model),
            "framework": (model, model),
            "head": (model.action_model, model.action_model),
        }
    if case.adapter == "fast-wam":
        policy = fastwam_like.policy(model)
        return {"policy": (policy, policy), "model": (model, model)}
    if case.adapter == "cogact":
        head = model.action_model
        return {"server": (SimpleNamespace(model=model), head), "framework": (model, head), "head": (head, head)}
    if case.adapter in ("rdt", "h-rdt"):
        return {"robot's": (SimpleNamespace(policy=model), model), "runner": (model, model)}
    if case.adapter == "openvla-oft":
        return {"robot": (model, model.model), "model": (model.model, model.model)}
    if case.adapter == "diffusion-policy":
        return {"workspace": (SimpleNamespace(model=model), model), "policy": (model, model)}
    return {"server": (SimpleNamespace(_model=model), model), "model": (model, model)}


def test_found_from_whatever_the_user_holds(case: str) -> None:
    for held, found in holders(case).values():
        handle = keystone.attach(held, k=4, **CASES[case].options)
        assert (handle.adapter, handle.engine.owner) == (CASES[case].adapter, found)
        asked(case)()
        assert handle.stats["rounds"] == 1
        assert keystone.attached(held) == handle
        keystone.detach(held)
        assert keystone.attached(held) is None


def test_a_sampler_replaced_on_the_object_would_hide_keystone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built("xvla-auto")
    monkeypatch.setattr(model, "generate_actions", torch.compile(model.generate_actions, backend="eager"))
    with pytest.raises(KeystoneError, match="replaced on the object itself"):
        keystone.attach(model, k=4)
    assert keystone.attached(model) is None


def test_a_copied_policy_is_a_policy_of_its_own() -> None:
    policy = groot_like.policy(built("groot-n1.6"))
    keystone.attach(policy, k=4)
    twin = copy.deepcopy(policy)
    keystone.detach(policy)
    groot_like.predict(twin.model, 1)
    assert keystone.attached(twin).stats["rounds"] == 1


# What is real


@pytest.mark.parametrize("space", [None, ActionSpace(dims=7), ActionSpace(steps=8)])
@pytest.mark.parametrize("name", ["groot-n1.5", "groot-n1.6", "groot-n1.7"])
def test_a_head_without_its_policy_must_be_told_what_is_real(name: str, space: ActionSpace | None) -> None:
    missing = "dims and steps" if space is None else "steps" if space.dims else "dims"
    with pytest.raises(KeystoneError, match=rf"(?s)Gr00tPolicy.*Missing: {missing}\. .*space=keystone\.ActionSpace"):
        keystone.attach(built(name), k=4, space=space)
    assert keystone.attached(built(name)) is None


def test_x_vla_must_be_told_its_dims() -> None:
    with pytest.raises(KeystoneError, match=r"WidowX.*Missing: dims\. .*space=keystone\.ActionSpace"):
        keystone.attach(built("xvla"), k=4)


def counted(handle: Any, predict: Callable[[], Tensor]) -> tuple[int, int]:
    """How many steps and dimensions of a chunk count in distances."""
    predict()
    layout = handle.engine.selector.space_for(predict()[:, None], 0).layout(*predict().shape[1:])
    return len(layout.steps), len(layout.plain)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("groot-n1.5", None, (8, 7)),
        ("groot-n1.6", None, (8, 7)),
        ("groot-n1.7", None, (8, 7)),
        ("groot-n1.6", ActionSpace(steps=2), (2, 7)),
        ("groot-n1.6", ActionSpace(dims=3), (8, 3)),
        ("groot-n1.6", ActionSpace(dims=3, steps=2), (2, 3)),
        ("xvla", ActionSpace(dims=10), (10, 10)),
        ("xvla", ActionSpace(dims=10, steps=5), (5, 10)),
        ("xvla-auto", None, (10, 8)),
        ("fastwam", None, (3, 14)),
        ("diffusion-unet", None, (4, 3)),
        ("diffusion-unet-inpainting", None, (4, 3)),
        ("diffusion-unet-inpainting", ActionSpace(dims=2), (4, 2)),
        ("dp3", None, (4, 3)),
    ],
)
def test_what_counts_comes_from_the_policy_and_the_caller(name: str, given: Any, expected: tuple[int, int]) -> None:
    held = holders(name).get("policy", (built(name), None))[0]
    handle = keystone.attach(held, k=4, space=given)
    try:
        assert counted(handle, asked(name)) == expected
    finally:
        keystone.detach(held)


def test_a_space_that_the_policy_needs_cannot_be_taken_away() -> None:
    model = built("groot-n1.6")
    handle = keystone.attach(model, k=4, **REAL)
    before = handle.space
    with pytest.raises(KeystoneError, match="Missing: dims and steps"):
        handle.space = None
    assert handle.space == before
    keystone.detach(model)


def test_dims_that_do_not_fit_are_refused() -> None:
    model = built("groot-n1.6")
    keystone.attach(model, k=4, space=ActionSpace(dims=30, steps=8))
    with pytest.raises(ValueError, match=r"dims=30 does not fit chunks of 29 action dimensions"):
        asked("groot-n1.6")()
    keystone.detach(model)


class TwoWays(groot_like.Head16):
    """Chunks that go one way in 70 % of the cases; what is padded was never trained, and stays noise."""

    def loop(self, actions: Tensor, prefix: Tensor, robot: Tensor, see: Any, strength: Any = 1.0) -> Tensor:
        return two_ways(self, actions)


def two_ways(head: Any, noise: Tensor, *_: Any, **__: Any) -> Tensor:
    chunk = noise.clone()
    way = torch.where(noise[:, :1, :1] > -0.5244, 1.0, -1.0)  # 70 % of a normal distribution lie above
    chunk[:, :8, :7] = 0.25 * way + 0.3 * noise[:, :8, :7]
    return chunk


def test_padding_outvotes_what_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """56 real and 408 padded numbers, K = 16: counted with the padding, a choice is hardly better than one sample."""
    monkeypatch.setattr("keystone_robotics.sample.families.groot.lerobot.denoise", two_ways)
    torch.manual_seed(0)
    model = groot_like.Model(TwoWays()).eval()

    def majority(k: int, space: ActionSpace) -> float:
        keystone.attach(model, k=k, space=space, seed=1)
        chunks = groot_like.predict(model, 400)
        keystone.detach(model)
        return float((chunks[:, :8, :7].mean((1, 2)) > 0).float().mean())

    everything, real = ActionSpace(dims=29, steps=16), ActionSpace(dims=7, steps=8)
    assert 0.62 < majority(1, real) < 0.78
    assert majority(16, real) > 0.9
    assert majority(16, everything) < 0.85


# Of one project


def test_real_time_chunking_of_groot_n17() -> None:
    model, inputs = built("groot-n1.7"), groot_like.inputs(2)
    inputs["action"] = torch.randn(2, groot_like.HORIZON, groot_like.DIMS, generator=torch.Generator().manual_seed(1))
    options = {"action_horizon": 10, "rtc_overlap_steps": 6, "rtc_frozen_steps": 2, "rtc_ramp_rate": 3.0}
    predict = lambda: model.get_action(inputs, options)["action_pred"]  # noqa: E731
    assert contract.largest_difference(model, predict, 4, **REAL) < 1e-5
    policy = groot_like.policy(model)
    handle = keystone.attach(policy, k=4)
    chunk = predict()
    assert torch.equal(chunk[:, :2], inputs["action"][:, 4:6])
    assert list(handle.engine.selector.space_for(chunk[:, None], 2).steps) == list(range(2, 10))
    keystone.detach(policy)


def test_the_head_of_groot_n15_is_not_given_processed_features_twice() -> None:
    model = built("groot-n1.5")
    output = model.backbone(groot_like.inputs(1))
    before = output.backbone_features.clone()
    keystone.attach(model, k=4, **REAL)
    model.action_head.get_action(output, groot_like.Fields(data=groot_like.inputs(1)))
    keystone.detach(model)
    assert torch.equal(output.backbone_features, before)


def test_grippers_are_compared_after_the_sigmoid() -> None:
    model = built("xvla")
    handle = keystone.attach(model, k=8, space=ActionSpace(dims=10))
    rounds = rounds_of(handle)
    asked("xvla", 2)()
    keystone.detach(model)
    grippers = rounds[0].candidates[..., [9, 19]]
    assert ((grippers > 0) & (grippers < 1)).all()


def test_an_action_space_that_writes_does_not_write_into_the_callers_state() -> None:
    model = built("xvla-auto")
    state = torch.ones(1, xvla_like.DIMS)
    keystone.attach(model, k=4, check=False)
    model.generate_actions(
        torch.zeros(1, 7, dtype=torch.long), torch.zeros(1, 2, 3, 4, 4), torch.ones(1, 2), torch.tensor([0]), state, 2
    )
    keystone.detach(model)
    assert torch.equal(state, torch.ones(1, xvla_like.DIMS))


def fastwam_candidates(seeds: list[int | None], **options: Any) -> list[Tensor]:
    model = built("fastwam")
    rounds = rounds_of(keystone.attach(model, k=8, **options))
    try:
        for seed in seeds:
            fastwam_like.predict(model, 1, seed)
    finally:
        keystone.detach(model)
    return [done.candidates[0] for done in rounds]


def test_a_fixed_seed_gives_distinct_candidates_that_repeat() -> None:
    first, again, other = fastwam_candidates([42, 42, 43])
    assert len(first.flatten(1).unique(dim=0)) == 8
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).all(dim=(1, 2)).any()


def test_a_seed_of_keystones_own_goes_before_that_of_the_call() -> None:
    first, second = fastwam_candidates([42, 42], seed=1)
    assert not torch.equal(first, second)
    assert torch.equal(first, fastwam_candidates([None], seed=1)[0])


def test_a_seeded_call_draws_nothing_from_the_global_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fastwam_candidates([42])
    assert torch.equal(torch.rand(3), expected)


def test_variants_that_cannot_be_sampled_k_wide_are_refused() -> None:
    with pytest.raises(KeystoneError, match="K videos"):
        keystone.attach(fastwam_like.ImaginesVideos(), k=4)
    head = starvla_like.OldHead(starvla_like.Network)
    head.t_eps = 0.05
    with pytest.raises(KeystoneError, match="predicts actions, not velocities"):
        keystone.attach(starvla_like.Framework(head), k=4)


class OtherXVLA(xvla_like.XVLALike):
    """An X-VLA whose sampler takes one argument more."""

    def generate_actions(self, input_ids: Tensor, *args: Any, guidance: float = 1.0, **kwargs: Any) -> Tensor:
        return super().generate_actions(input_ids, *args, **kwargs) * guidance


def test_an_xvla_that_takes_other_arguments_runs_alone_and_is_told_otherwise() -> None:
    model = OtherXVLA(xvla_like.TwoArms()).eval()
    handle = keystone.attach(model, k=1, space=ActionSpace(dims=10))
    assert xvla_like.predict(model, 1).shape == (1, xvla_like.STEPS, xvla_like.DIMS)
    handle.k = 4
    with pytest.raises(KeystoneError, match=r"generate_actions takes .*guidance.* X-VLA's code has changed"):
        xvla_like.predict(model, 1)


class OtherFastWAM(fastwam_like.FastWAMLike):
    """A Fast-WAM whose loop goes another way, as a compiled one does."""

    def infer_action(self, **options: Any) -> dict[str, Tensor]:  # type: ignore[override]
        return {"action": torch.randn(options["action_horizon"], fastwam_like.DIMS)}


def test_a_fast_wam_whose_steps_cannot_be_seen_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = inspect.signature(fastwam_like.FastWAMLike.infer_action)
    monkeypatch.setattr(OtherFastWAM.infer_action, "__signature__", signature, raising=False)
    model = OtherFastWAM().eval()
    keystone.attach(model, k=4)
    with pytest.raises(KeystoneError, match="it was compiled, or its code has changed; attach before compiling"):
        fastwam_like.predict(model, 1)


def test_which_steps_of_a_diffusion_policy_are_executed() -> None:
    policy = built("diffusion-unet")
    adapter = keystone.attach(policy, k=4).engine.adapter
    keystone.detach(policy)
    common = {"action_dim": 3, "n_obs_steps": 2, "n_action_steps": 4}
    starts = [
        adapter.window(SimpleNamespace(**common, **options)).start
        for options in (
            {},
            {"oa_step_convention": True},
            {"oa_step_convention": False},
            {"oa_step_convention": False, "pred_action_steps_only": True},
            {"rgb_nets_map": {}},
        )
    ]
    assert starts == [1, 1, 2, 0, 2]


class OtherDiffusion(diffusion_like.UnetLike):
    def conditional_sample(
        self, condition_data: Tensor, condition_mask: Tensor, guidance: float = 1.0, **kwargs: Any
    ) -> Any:
        return super().conditional_sample(condition_data, condition_mask, **kwargs)

    def sample_with(self, data: Tensor, mask: Tensor, **conditions: Any) -> Tensor:
        return self.conditional_sample(data, mask, guidance=2.0, **conditions)


def test_a_diffusion_policy_that_takes_other_arguments_is_told() -> None:
    policy = OtherDiffusion(diffusion_like.DDIMScheduler()).eval()
    keystone.attach(policy, k=4)
    with pytest.raises(KeystoneError, match=r"conditional_sample takes guidance, which the adapter does not know"):
        diffusion_like.predict(policy, 1)


def test_a_diffusion_policy_cannot_take_more_steps_than_it_was_trained_with() -> None:
    with pytest.raises(KeystoneError, match=r"steps=21: the noise schedule has 20 steps; expected 1 to 20"):
        keystone.attach(built("diffusion-unet"), k=4, steps=21)


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_cogact_with_noise_at_every_step(scale: float) -> None:
    framework = built("cogact")
    predict = partial(cogact_like.predict, framework, 3, cfg_scale=scale, use_ddim=False)
    assert keystone.attach(framework, k=4, seed=0, check="all").adapter == "cogact"
    torch.manual_seed(0)
    assert predict().shape == (3, cogact_like.HORIZON, cogact_like.DIMS)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    torch.randn(3, cogact_like.HORIZON, cogact_like.DIMS)  # by the caller of the loop
    assert torch.equal(torch.get_rng_state(), state)
    finding = keystone.attached(framework).engine.finding
    keystone.detach(framework)
    assert finding.compared == 4
    assert finding.difference < 1e-5


def test_cogact_says_which_steps_it_can_take() -> None:
    framework = built("cogact")
    with pytest.raises(KeystoneError, match=r"steps=9: DDIM takes every second, .* expected one of \[2, 3, 4, 6, 12\]"):
        keystone.attach(framework, k=4, steps=9)
    keystone.attach(framework, k=4, steps=2)
    with pytest.raises(KeystoneError, match=r"steps=2: the policy samples with DDPM"):
        cogact_like.predict(framework, 1, use_ddim=False)
    keystone.detach(framework)


@pytest.mark.parametrize("name", ["rdt", "h-rdt"])
def test_an_rdt_with_a_hook_runs_as_it_is(name: str) -> None:
    runner = built(name)
    handle = keystone.attach(runner, k=4, check="all")
    hook = runner.model.blocks[1].register_forward_hook(lambda *_: None)
    asked(name)()
    assert handle.path == "plain"
    hook.remove()
    asked(name)()
    assert handle.path == "fast"
    keystone.detach(runner)


def test_rdt_counts_the_robots_dimensions_only() -> None:
    """Those of other robots are 0 in every candidate."""
    runner = built("rdt")
    rounds = rounds_of(keystone.attach(runner, k=4, seed=0))
    asked("rdt")()
    keystone.detach(runner)
    candidates = rounds[0].candidates
    assert not candidates[..., rdt_like.REAL :].any()
    assert keystone.select(candidates[..., : rdt_like.REAL]).index == rounds[0].selection.index


def test_rdt_cannot_take_more_steps_than_it_was_trained_with() -> None:
    with pytest.raises(KeystoneError, match=r"steps=21: the noise schedule has 20 steps; expected 1 to 20"):
        keystone.attach(built("rdt"), k=4, steps=21)


def test_openvla_oft_returns_the_hidden_states_of_the_selected_candidate() -> None:
    robot = built("openvla-oft")
    rounds = rounds_of(keystone.attach(robot, k=8, seed=0))
    with contract.recorded_noise() as (initial, _):
        actions, hidden = openvla_oft_like.answer(robot)
    keystone.detach(robot)
    with FixedNoise(initial[0][int(rounds[0].selection.index[0])][None]):
        expected_actions, expected = openvla_oft_like.answer(robot)
    assert torch.allclose(hidden, expected, atol=1e-5)
    assert torch.allclose(*(torch.from_numpy(one) for one in (actions, expected_actions)), atol=1e-5)


def test_openvla_oft_without_a_diffusion_head_is_told() -> None:
    robot = built("openvla-oft")
    handle = keystone.attach(robot, k=4)
    with pytest.raises(KeystoneError, match="deterministic, and all candidates would be equal"):
        openvla_oft_like.answer(robot, diffusion=False)
    handle.k = 1
    assert openvla_oft_like.answer(robot, diffusion=False)[0].shape == (openvla_oft_like.HORIZON, openvla_oft_like.DIMS)
    keystone.detach(robot)


def test_openvla_oft_cannot_take_more_steps_than_its_head_was_trained_with() -> None:
    robot = built("openvla-oft")
    keystone.attach(robot, k=4, steps=21)
    with pytest.raises(KeystoneError, match=r"steps=21: the noise schedule has 20 steps; expected 1 to 20"):
        openvla_oft_like.answer(robot)
    keystone.detach(robot)


# The number of denoising steps


def test_candidates_take_that_many_steps(case: str) -> None:
    options, path = CASES[case].options, "fast" if case in FAST else "plain"
    expected = partial(CASES[case].predict, with_steps(case, 2))
    rows = max(rows for rows, _ in CASES[case].batches)
    found = contract.largest_difference(
        built(case), asked(case, rows), 4, path, alone=partial(expected, rows), steps=2, **options
    )
    assert found < 1e-5


def test_one_candidate_with_steps_is_the_policy_with_that_setting(case: str) -> None:
    keystone.attach(built(case), k=1, steps=2, **CASES[case].options)
    chunks = []
    for model in (built(case), with_steps(case, 2)):
        torch.manual_seed(3)
        chunks.append(CASES[case].predict(model, 1))
    assert torch.equal(*chunks)
    keystone.detach(built(case))
    torch.manual_seed(3)
    assert not torch.equal(asked(case)(), chunks[0])


def test_steps_leave_no_trace(case: str) -> None:
    contract.assert_no_trace(built(case), asked(case), steps=2, **CASES[case].options)


@pytest.mark.parametrize("name", ["groot-n1.5", "groot-n1.7", "starvla", "xvla", "fastwam"])
def test_a_profile_is_of_one_number_of_steps(name: str) -> None:
    handle = keystone.attach(built(name), k=4, **CASES[name].options)
    found = []
    for steps in (None, 2, 3):
        handle.steps = steps
        found.append(fingerprint_architecture(handle, torch.device("cpu"), 1))
    keystone.detach(built(name))
    assert len(set(found)) == 3


@pytest.mark.parametrize("name", ["groot-n1.5", "groot-n1.7", "starvla"])
def test_a_profile_holds_for_as_many_steps_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = built(name), []
    for steps in (4, 16):
        handle = keystone.attach(model, k=4, **CASES[name].options)
        monkeypatch.setattr(handle.engine.adapter.module(model), "num_inference_timesteps", steps)
        found.append(fingerprint_architecture(handle, torch.device("cpu"), 1))
        keystone.detach(model)
    assert found[0] != found[1]
