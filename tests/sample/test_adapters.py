"""The contract of every adapter: K candidates are K calls of the policy, from one encoding, and nothing else changes."""

import copy
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from lerobot.utils.constants import OBS_LANGUAGE_ATTENTION_MASK
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.cache_utils import DynamicLayer

import keystone_robotics as keystone
from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.sample import engine as engine_module
from keystone_robotics.sample.check import TOLERANCES
from keystone_robotics.sample.families import ADAPTERS
from keystone_robotics.sample.families.fastwam import flow as mot_flow
from keystone_robotics.sample.families.xvla import lerobot as xvla
from keystone_robotics.sample.kit import packing
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.noise import FixedNoise, initial_noise
from keystone_robotics.sample.request import SampleRequest
from keystone_robotics.select.rules import RULES, bind
from tiny import POLICIES
from tiny.common import seeded
from tiny.shapes import Shapes

NAMES = [name for name, adapter in ADAPTERS.items() if not adapter.refusal and adapter.project == "LeRobot"]
SAMPLED = ["smolvla", "diffusion", "xvla", "evo1"]
"""Four ways to share a context, for what the engine does alike for all: packed, given, widened, from uniform noise."""
PACKED = ["pi0", "pi05", "smolvla"]
RTC = ["pi0", "pi05", "smolvla", "groot", "evo1", "molmoact2"]
WRITES_IN_PLACE = {"eo1", "wall_x"}
"""Policies that torch.vmap cannot run."""
SHARES_STATE = {
    "groot": "registers a forward hook in every call",
    "vla_jepa": "registers a forward hook in every call",
    "multi_task_dit": "observations reach the sampler through a queue on the policy",
    "wall_x": "tokenises in every call, and a fast tokenizer cannot be in use twice (Already borrowed)",
}
"""Policies that two threads cannot use at once, with or without KeyStone."""


STEPS = {
    **dict.fromkeys(("diffusion", "fastwam", "molmoact2", "pi0", "pi05"), "num_inference_steps"),
    **dict.fromkeys(("evo1", "groot", "vla_jepa"), "num_inference_timesteps"),
    "eo1": "num_denoise_steps",
    "multi_task_dit": "num_integration_steps",
    "smolvla": "num_steps",
    "xvla": "num_denoising_steps",
}
"""The number of denoising steps in the policies' configurations."""

SCORED = {
    "diffusion": {"global_cond"},
    "eo1": {"input_ids", "pixel_values", "states"},
    "evo1": {"fused_tokens", "state"},
    "fastwam": {"batch"},
    "groot": {"backbone_features", "state_features", "embodiment_id"},
    "molmoact2": {"input_ids", "pixel_values"},
    "multi_task_dit": {"conditioning_vec"},
    "pi0": {"images", "lang_tokens", "state"},
    "pi05": {"images", "tokens"},
    "smolvla": {"images", "lang_tokens", "state"},
    "vla_jepa": {"conditioning_tokens", "state"},
    "wall_x": {"input_ids", "pixel_values", "proprioception"},
    "xvla": {"input_ids", "image_input", "proprio"},
}
"""Some of what a scorer is shown: parameters of the policies' own methods."""


def named(names: Sequence[str]) -> Any:
    """One case for each policy; all of a policy's cases share a worker, which builds it once."""
    return pytest.mark.parametrize("name", list(names))


@functools.cache
def build(name: str, **overrides: Any) -> Any:
    return POLICIES[name].build(**overrides).requires_grad_(False)


@pytest.fixture
def policy(name: str) -> Iterator[Any]:
    """The tiny policy, the same for all tests of this file and never attached at their beginning."""
    yield build(name)
    keystone.detach(build(name))


class Recorder:
    """The initial noise of every round, before the temperature."""

    def __init__(self) -> None:
        self.noises: list[tuple[Tensor, int, bool]] = []

    def __call__(
        self, seeds: Sequence[int], k: int, shape: Sequence[int], uniform: bool = False, first: int = 0
    ) -> Tensor:
        noise = initial_noise(seeds, k, shape, uniform, first)
        self.noises.append((noise.clone(), k, uniform))
        return noise

    def candidate(self, j: int, temperature: float = 1.0) -> list[Tensor]:
        """What the policy's own draws must return to make candidate j: one tensor for each round."""
        rows = [noise.unflatten(0, (-1, k))[:, j] * temperature for noise, k, _ in self.noises]
        return [(row + 1) / 2 if uniform else row for row, (_, _, uniform) in zip(rows, self.noises, strict=True)]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(engine_module, "initial_noise", recorder)
    return recorder


def candidate_chunks(policy: Any, predict: Callable[[], Tensor], recorder: Recorder, k: int, **options: Any) -> Tensor:
    """(K, B, T, D) what an attached policy returns when each of its candidates in turn is the chosen one."""
    handle = keystone.attach(policy, k=k, check=False, **options)
    chunks = []
    try:
        for j in range(k):
            recorder.noises.clear()
            handle.rule = bind(lambda candidates, j=j: j, {})
            with handle.seeded(7):
                chunks.append(predict())
    finally:
        keystone.detach(policy)
    return torch.stack(chunks)


def single_chunks(predict: Callable[[], Tensor], recorder: Recorder, k: int, temperature: float = 1.0) -> Tensor:
    """(K, B, T, D) what the policy alone returns when it draws the noise of each candidate in turn."""
    chunks = []
    for j in range(k):
        with FixedNoise(*recorder.candidate(j, temperature)) as given:
            chunks.append(predict())
        assert given.left == 0, "the policy did not draw the noise it was given"
    return torch.stack(chunks)


def assert_close(got: Tensor, expected: Tensor, tolerance: float = TOLERANCES[torch.float32]) -> None:
    assert got.shape == expected.shape
    assert got.isfinite().all()
    size = max(1.0, float(expected.abs().max()))
    difference = float((got - expected).abs().max())
    assert difference <= tolerance * size, f"{difference:.1e} for actions up to {size:.1f}"


def assert_different(chunks: Tensor) -> None:
    """No two candidates (K, B, T, D) are alike: equality of equal candidates would prove nothing."""
    spread = (chunks[:, None] - chunks[None]).abs().amax(dim=(2, 3, 4))
    assert spread[~torch.eye(len(chunks), dtype=torch.bool)].min() > 1e-2


def rounds_of(handle: Handle) -> list[RoundEvent]:
    rounds: list[RoundEvent] = []
    handle.subscribe(rounds.append)
    return rounds


# 1, 2: candidates are single calls


@pytest.mark.parametrize(
    ("name", "batch_size", "k"),
    # one observation of the others: test_candidates_are_what_vmap_computes
    [*((name, 3, 2) for name in NAMES), *((name, 1, 3) for name in sorted(WRITES_IN_PLACE))],
)
def test_candidates_are_single_calls(name: str, policy: Any, recorder: Recorder, batch_size: int, k: int) -> None:
    recipe = POLICIES[name]
    assert batch_size in recipe.batch_sizes
    predict = functools.partial(recipe.predict, policy, recipe.batch(batch_size))
    candidates = candidate_chunks(policy, predict, recorder, k)
    assert_different(candidates)
    assert_close(candidates, single_chunks(predict, recorder, k))


@named([name for name in NAMES if name not in WRITES_IN_PLACE])
def test_candidates_are_what_vmap_computes(
    name: str, policy: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = POLICIES[name]
    predict = functools.partial(recipe.predict, policy, recipe.batch())
    if (
        name == "vla_jepa"
    ):  # its encoder runs in bfloat16 and rounds differently within vmap: both get the same encoding
        encode, encoded = policy.model._encode_qwen, []

        def encode_once(*inputs: Any, **options: Any) -> Any:
            if not encoded:
                encoded.append(encode(*inputs, **options))
            return encoded[0]

        monkeypatch.setitem(vars(policy.model), "_encode_qwen", encode_once)

    def one(*noise: Tensor) -> Tensor:
        with FixedNoise(*noise):
            return predict()

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # the backend that has a batching rule, for both
        candidates = candidate_chunks(policy, predict, recorder, 4)
        noises = [torch.stack(draws) for draws in zip(*(recorder.candidate(j) for j in range(4)), strict=True)]
        assert_close(candidates, torch.vmap(one, randomness="different")(*noises))


@named([*PACKED, "groot"])
def test_padding_of_the_context_differs_from_row_to_row(name: str, policy: Any, recorder: Recorder) -> None:
    recipe = POLICIES[name]
    batch = recipe.batch(3)
    key = "attention_mask" if name == "groot" else OBS_LANGUAGE_ATTENTION_MASK
    for row in range(3):
        batch[key][row, batch[key].shape[1] - row :] = False
    predict = functools.partial(recipe.predict, policy, batch)
    candidates = candidate_chunks(policy, predict, recorder, 2)
    assert_close(candidates, single_chunks(predict, recorder, 2))
    full = functools.partial(recipe.predict, policy, recipe.batch(3))
    moved = (single_chunks(full, recorder, 2) - candidates).abs().amax(dim=(0, 2, 3))
    assert (moved[1:] > 1e-2).all(), "the padding has no effect: this test has no teeth"


@pytest.mark.parametrize("name", ["diffusion", "multi_task_dit"])
def test_samplers_that_draw_at_every_step_pass_the_check(name: str) -> None:
    options = {"noise_scheduler_type": "DDPM", "num_inference_steps": 4}
    policy = build(name, **options, **({"objective": "diffusion"} if name == "multi_task_dit" else {}))
    keystone.attach(policy, k=4, seed=0, check="all")
    try:
        POLICIES[name].predict(policy, POLICIES[name].batch(3))
    finally:
        keystone.detach(policy)


# 3: K = 1


@named(NAMES)
def test_one_candidate_is_the_policy_itself(name: str, policy: Any) -> None:
    recipe = POLICIES[name]
    with seeded(3):
        alone = recipe.predict(policy, recipe.batch())
    handle = keystone.attach(policy, k=1, temperature=1.0)
    assert handle.engine.untouched
    with seeded(3):
        attached = recipe.predict(policy, recipe.batch())
    assert torch.equal(alone, attached)
    assert handle.stats["rounds"] == 0


@named(SAMPLED)
def test_seeded_single_candidate_is_the_first_of_many(name: str, policy: Any) -> None:
    recipe = POLICIES[name]
    chunks = []
    for k in (1, 8):
        handle = keystone.attach(policy, k=k, seed=5, check=False)
        handle.rule = RULES["first"]()
        chunks.append(recipe.predict(policy, recipe.batch()))
        keystone.detach(policy)
    assert_close(chunks[1], chunks[0])


# 4, 5: sharing


@named(NAMES)
def test_context_is_encoded_once(name: str, policy: Any) -> None:
    recipe = POLICIES[name]
    counted = []
    for k in (1, 8):
        handle = keystone.attach(policy, k=k, check=False)
        with handle.engine.timer.count(handle.engine.encoder_names) as calls:
            recipe.predict(policy, recipe.batch())
        assert handle.stats["rounds"] == (k > 1)
        counted.append(calls)
        keystone.detach(policy)
    assert counted[0], "the adapter names no encoder"
    assert all(counted[0].values())
    assert counted[0] == counted[1]


@named(PACKED)
def test_prefix_is_never_copied_for_a_candidate(name: str, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_size, k = 3, 5
    expert = policy.model.vlm_with_expert if name == "smolvla" else policy.model.paligemma_with_expert
    forward, caches = expert.forward, []

    def spy(**inputs: Any) -> Any:
        cache = inputs["past_key_values"]
        caches.append(None if cache is None else [layer.keys for layer in cache.layers])
        return forward(**inputs)

    monkeypatch.setitem(vars(expert), "forward", spy)
    keystone.attach(policy, k=k, check=False)
    with Shapes() as shapes:
        POLICIES[name].predict(policy, POLICIES[name].batch(batch_size))
    prefill, *steps = caches
    assert prefill is None
    assert len(steps) == 4
    for keys in steps:
        assert [key.shape[0] for key in keys] == [batch_size] * len(keys)
        assert [key.data_ptr() for key in keys] == [key.data_ptr() for key in steps[0]]
    prefix = steps[0][0].shape[2]
    suffixes = (policy.config.chunk_size, policy.config.chunk_size + 1)  # π0 has its state in front
    lengths = {prefix, *(prefix + suffix for suffix in suffixes)}
    copies = [shape for shape in shapes.seen if shape[:1] == (batch_size * k,) and lengths & set(shape[1:])]
    assert copies == []


# 6: real-time chunking


@functools.cache
def build_with_rtc(name: str) -> Any:
    config = RTCConfig(enabled=True, execution_horizon=6)
    policy = POLICIES[name].build(**({} if name == "groot" else {"rtc_config": config})).requires_grad_(False)
    policy.config.rtc_config = config  # GR00T's has no such field, but reads it where a rollout has set it
    return policy


@pytest.mark.parametrize(
    ("name", "batch_size", "leftover"),
    [
        (name, batch_size, leftover)
        for number, name in enumerate(RTC)
        for batch_size, leftover in (
            (1, ("rows", "none")[number % 2]),
            (3, ("one row", "whole chunk")[number // 2 % 2]),
        )
    ],
)
def test_candidates_are_single_calls_with_rtc(name: str, recorder: Recorder, leftover: str, batch_size: int) -> None:
    recipe, policy = POLICIES[name], build_with_rtc(name)
    generator = torch.Generator().manual_seed(1)
    width = getattr(policy.config, "max_action_dim", recipe.chunk_shape[1])
    chunk = (policy.config.chunk_size, width)
    previous = {
        "rows": torch.randn(7, 6, generator=generator),
        "one row": torch.randn(1, 7, 6, generator=generator),
        "whole chunk": torch.randn(batch_size, *chunk, generator=generator),
        "none": None,
    }[leftover]
    batch = recipe.batch(batch_size)

    def predict(**options: Any) -> Tensor:
        policy.reset()
        return policy.predict_action_chunk(dict(batch), **options)

    chunked = functools.partial(predict, inference_delay=2, prev_chunk_left_over=previous)
    candidates = candidate_chunks(policy, chunked, recorder, 2)
    assert_close(candidates, single_chunks(chunked, recorder, 2))
    if previous is not None:
        moved = (single_chunks(predict, recorder, 2) - candidates).abs().max()
        assert moved > 1e-2, "the previous chunk has no effect: this test has no teeth"


@named(RTC)
def test_distances_begin_after_the_delay(name: str) -> None:
    policy = build_with_rtc(name)
    handle = keystone.attach(policy, k=4)  # with the self-check
    try:
        policy.predict_action_chunk(POLICIES[name].batch(), inference_delay=2, prev_chunk_left_over=torch.ones(7, 6))
    finally:
        keystone.detach(policy)
    ((_, space),) = handle.engine.selector._completed.values()
    assert space.steps.start == 2


# 7: the queue


@named(NAMES)
def test_select_action_executes_the_chosen_chunk(name: str, policy: Any) -> None:
    recipe, steps = POLICIES[name], policy.config.n_action_steps
    handle = keystone.attach(policy, k=4, seed=0)
    rounds = rounds_of(handle)
    policy.reset()
    actions = [policy.select_action(dict(recipe.batch(seed=step))) for step in range(steps + 2)]
    policy.reset()
    assert handle.stats["rounds"] == len(rounds) == 2
    window = ADAPTERS[name].window(policy.config)
    assert window.steps == steps
    for step, action in enumerate(actions):
        chunk = rounds[step // steps].selection.chunk
        width = window.dims or chunk.shape[-1]
        torch.testing.assert_close(action[:, :width], chunk[:, window.start + step % steps, :width].to(action))


@named(NAMES)
def test_a_scorer_is_shown_the_call_and_every_candidate(name: str, policy: Any) -> None:
    recipe, k, seen = POLICIES[name], 3, []

    def liking(context: dict[str, Any], candidates: Tensor) -> Tensor:
        seen.append((context, candidates))
        return torch.tensor([[0.0, 2.0, 1.0]]).expand(candidates.shape[:2])

    handle = keystone.attach(policy, k=k, seed=0, rule=keystone.Scored(liking))
    recipe.predict(policy, recipe.batch(1))
    ((context, candidates),) = seen
    assert candidates.shape[:2] == (1, k)
    assert SCORED[name] <= set(context)
    assert handle.last is not None
    assert torch.equal(handle.last.chunk, candidates[:, 1])


# 8: attaching and detaching


def snapshot(policy: Any) -> list[tuple[type, dict[str, int]]]:
    return [(type(module), {key: id(value) for key, value in vars(module).items()}) for module in policy.modules()]


@named(NAMES)
def test_detaching_leaves_no_trace(name: str, policy: Any) -> None:
    POLICIES[name].predict(policy, POLICIES[name].batch())  # transformers puts hooks on its modules in the first call
    before, keys = snapshot(policy), list(policy.state_dict())
    handle = keystone.attach(policy, k=2)
    assert type(ADAPTERS[name].module(policy)) not in (kind for kind, _ in before)
    assert isinstance(ADAPTERS[name].module(policy), nn.Module)
    assert list(policy.state_dict()) == keys
    assert keystone.attached(policy) == handle
    keystone.detach(policy)
    assert snapshot(policy) == before
    keystone.attach(policy, k=2, rule="keystone")
    POLICIES[name].predict(policy, POLICIES[name].batch())
    keystone.detach(policy)
    assert [(kind, set(names)) for kind, names in snapshot(policy)] == [(kind, set(names)) for kind, names in before]
    assert keystone.attached(policy) is None


@named(NAMES)
def test_chunk_is_the_same_in_every_mode_of_autograd(name: str, policy: Any) -> None:
    recipe = POLICIES[name]
    policy.requires_grad_(True)
    handle = keystone.attach(policy, k=2)
    chunks = []
    try:
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode(), handle.seeded(1):
                chunks.append(recipe.predict(policy, recipe.batch()))
            assert not chunks[-1].requires_grad
    finally:
        policy.requires_grad_(False)
    assert torch.equal(chunks[0], chunks[1])
    assert torch.equal(chunks[0], chunks[2])


@named(SAMPLED)
def test_copy_is_attached_and_independent(name: str, policy: Any) -> None:
    recipe = POLICIES[name]
    handle = keystone.attach(policy, k=4, seed=0)
    twin = copy.deepcopy(policy)
    twin_handle = keystone.attached(twin)
    assert twin_handle is not None
    assert twin_handle is not handle
    assert torch.equal(recipe.predict(policy, recipe.batch()), recipe.predict(twin, recipe.batch()))
    assert (handle.stats["rounds"], twin_handle.stats["rounds"]) == (1, 1)
    keystone.detach(twin)
    assert keystone.attached(policy) == handle
    recipe.predict(policy, recipe.batch())
    assert (handle.stats["rounds"], twin_handle.stats["rounds"]) == (2, 1)


@named(["diffusion", "smolvla"])
def test_attached_policy_saves_as_itself(name: str, policy: Any, tmp_path: Path) -> None:
    recipe = POLICIES[name]
    policy.save_pretrained(tmp_path / "alone")
    handle = keystone.attach(policy, k=4, seed=0)
    recipe.predict(policy, recipe.batch())
    policy.save_pretrained(tmp_path / "attached")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "attached" / file).read_bytes()
    loaded = type(policy).from_pretrained(tmp_path / "attached").eval()
    assert keystone.attached(loaded) is None
    other = keystone.attach(loaded, k=4)
    with handle.seeded(1), other.seeded(1):
        assert torch.equal(recipe.predict(policy, recipe.batch()), recipe.predict(loaded, recipe.batch()))


@pytest.mark.parametrize("name", ["smolvla"])
def test_weights_can_be_loaded_while_attached(name: str, policy: Any) -> None:
    keystone.attach(policy, k=4, seed=0)
    result = policy.load_state_dict(policy.state_dict())
    assert not result.missing_keys
    assert not result.unexpected_keys


# 9: threads


@named([name for name in NAMES if name not in SHARES_STATE])
def test_threads_share_an_attached_policy(name: str, policy: Any) -> None:
    recipe = POLICIES[name]
    handle = keystone.attach(policy, k=4)  # with the self-check, which all threads meet at once
    batches = [recipe.batch(seed=i) for i in range(4)]

    def run(i: int) -> Tensor:
        with torch.no_grad(), handle.seeded(i):
            return recipe.predict(policy, batches[i % 4])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(run, range(6)))
    finally:
        sys.setswitchinterval(interval)
    assert handle.stats["rounds"] == 6
    for i, chunk in enumerate(together):
        assert torch.equal(chunk, run(i))
    encoders = ADAPTERS[name].encoder_methods(policy)
    assert all(method not in vars(owner) for owner, method in encoders), "the check's counters were left behind"


# 10: temperature


@named(SAMPLED)
def test_temperature_scales_the_noise(name: str, policy: Any, recorder: Recorder) -> None:
    recipe = POLICIES[name]
    predict = functools.partial(recipe.predict, policy, recipe.batch())
    warm = candidate_chunks(policy, predict, recorder, 2, temperature=0.5)
    assert_close(warm, single_chunks(predict, recorder, 2, temperature=0.5))
    cold = candidate_chunks(policy, predict, recorder, 2, temperature=0.0)
    assert_close(cold, cold[:1].expand_as(cold), tolerance=1e-5)


# 11: bfloat16


@pytest.mark.parametrize("name", ["pi05", "smolvla", "groot"])
def test_bfloat16_passes_the_check(name: str) -> None:
    recipe = POLICIES[name]
    if name == "pi05":
        policy = recipe.build(dtype="bfloat16")
    elif name == "groot":
        policy = recipe.build(use_bf16=True)
    else:
        policy = recipe.build()
        policy.model.vlm_with_expert.to(torch.bfloat16)
    handle = keystone.attach(policy, k=8, seed=0, check="all")
    chunk = recipe.predict(policy, recipe.batch(3))
    assert chunk.isfinite().all()
    assert handle.engine.finding is not None
    assert handle.engine.finding.compared == 8
    assert handle.engine.finding.difference < TOLERANCES[torch.bfloat16] * float(chunk.abs().max())


@pytest.mark.parametrize("k", [1, 2])
def test_further_arguments_reach_the_sampler_of_pi05_under_their_own_names(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = POLICIES["pi05"]
    policy = recipe.build()
    own, seen = type(policy.model).sample_actions, []

    @functools.wraps(own)
    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs)
        return own(*args, **kwargs)

    monkeypatch.setattr(type(policy.model), "sample_actions", spy)
    keystone.attach(policy, k=k, seed=0, check=False)
    policy.predict_action_chunk(recipe.batch(), execution_horizon=3)
    assert seen
    assert all("kwargs" not in kwargs and kwargs["execution_horizon"] == 3 for kwargs in seen)


# 12: what counts in distances


@named(NAMES)
def test_choice_ignores_padding_and_steps_that_are_not_executed(name: str, policy: Any) -> None:
    recipe = POLICIES[name]
    handle = keystone.attach(policy, k=8, seed=0)
    rounds = rounds_of(handle)
    recipe.predict(policy, recipe.batch())
    (chosen,) = rounds
    window = ADAPTERS[name].window(policy.config)
    real = torch.zeros(chosen.candidates.shape[2:], dtype=torch.bool)
    real[window.start : window.start + window.steps, : window.dims] = True

    def choice(candidates: Tensor) -> int:
        return int(handle.engine.selector.select(candidates).index[0])

    index = choice(chosen.candidates)
    assert index == int(chosen.selection.index[0])
    noise = 100 * torch.randn(chosen.candidates.shape, generator=torch.Generator().manual_seed(0))
    assert choice(chosen.candidates + noise * ~real) == index
    far = torch.zeros_like(chosen.candidates)
    far[:, index] = 100.0
    assert choice(chosen.candidates + far * real) != index


# 13: the self-check notices


@named(SAMPLED)
def test_check_notices_equal_noise(name: str, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def equal(seeds: Sequence[int], k: int, shape: Sequence[int], uniform: bool = False, first: int = 0) -> Tensor:
        return widen(initial_noise(seeds, 1, shape, uniform, first), k).clone()

    monkeypatch.setattr(engine_module, "initial_noise", equal)
    handle = keystone.attach(policy, k=4, seed=0)
    handle.subscribe(lambda event: pytest.fail("a round was finished"))
    with pytest.raises(KeystoneError, match="all candidates are equal"):
        POLICIES[name].predict(policy, POLICIES[name].batch())


def widen_wrongly(value: Any, k: int) -> Any:
    """All rows after all rows, instead of K times each; and where there is but one row, a little noise in its last copy."""
    if not isinstance(value, Tensor):
        return value
    wide = value.repeat(k, *(1 for _ in value.shape[1:]))
    if len(value) == 1 and value.is_floating_point():
        wide[-1] *= 1.1
    return wide


def repeat_wrongly(layer: Any, repeats: int) -> None:
    layer.keys, layer.values = widen_wrongly(layer.keys, repeats), widen_wrongly(layer.values, repeats)


@named(NAMES)
def test_check_notices_a_wrong_context(name: str, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # what they share with the same policies in other projects' code lies apart
    elsewhere = {"fastwam": mot_flow, **dict.fromkeys(("pi0", "pi05", "smolvla"), packing)}
    module = elsewhere.get(name, sys.modules[type(ADAPTERS[name]).__module__])
    if hasattr(module, "pack"):

        def leaking(*args: Any) -> Any:
            packed = pack(*args)
            return packed._replace(mask=torch.ones_like(packed.mask))  # candidates see each other

        pack = module.pack
        monkeypatch.setattr(module, "pack", leaking)
    else:
        monkeypatch.setattr(module, "widen", widen_wrongly)
        monkeypatch.setattr(DynamicLayer, "batch_repeat_interleave", repeat_wrongly)
    keystone.attach(policy, k=4, seed=0, fast=False)  # which would have noticed nothing wrong with itself
    with pytest.raises(KeystoneError, match="differ from single calls"):
        POLICIES[name].predict(policy, POLICIES[name].batch(3))


@pytest.mark.parametrize("name", ["xvla"])
def test_check_notices_a_second_encoding(name: str, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forward_vlm, denoise, seen = policy.model.forward_vlm, xvla.denoise, []

    def spy(*args: Any) -> Any:
        seen.append(args)
        return forward_vlm(*args)

    def wasteful(model: Any, *args: Any, **kwargs: Any) -> Tensor:
        model.forward_vlm(*seen[0])
        return denoise(model, *args, **kwargs)

    monkeypatch.setitem(vars(policy.model), "forward_vlm", spy)
    monkeypatch.setattr(xvla, "denoise", wasteful)
    keystone.attach(policy, k=4, seed=0)
    with pytest.raises(KeystoneError, match="forward_vlm was called 2 times for 4 candidates, 1 for one"):
        POLICIES[name].predict(policy, POLICIES[name].batch())


# 14: the number of denoising steps


@functools.cache
def build_with_steps(name: str, steps: int) -> Any:
    """The same weights, and a configuration with that number of steps."""
    twin = POLICIES[name].build(**{STEPS[name]: steps} if name in STEPS else {}).requires_grad_(False)
    twin.load_state_dict(build(name).state_dict())
    if name not in STEPS:  # Wall-X has no such setting
        twin.model.predict = functools.partial(twin.model.predict, num_inference_timesteps=steps)
    return twin


@named(NAMES)
def test_candidates_take_that_many_steps(name: str, policy: Any, recorder: Recorder) -> None:
    recipe, twin = POLICIES[name], build_with_steps(name, 2)
    batch = recipe.batch(max(recipe.batch_sizes))
    predict, expected = (functools.partial(recipe.predict, one, batch) for one in (policy, twin))
    candidates = candidate_chunks(policy, predict, recorder, 2, steps=2)
    assert_close(candidates, single_chunks(expected, recorder, 2))
    moved = (single_chunks(predict, recorder, 2) - candidates).abs().max()
    assert moved > 1e-3, "the number of steps has no effect: this test has no teeth"


@named(NAMES)
def test_one_candidate_with_steps_is_the_policy_with_that_setting(name: str, policy: Any) -> None:
    recipe, twin = POLICIES[name], build_with_steps(name, 2)
    chunks = []
    handle = keystone.attach(policy, k=1, steps=2)
    assert handle.engine.untouched
    for one in (policy, twin):
        with seeded(3):
            chunks.append(recipe.predict(one, recipe.batch()))
    assert torch.equal(*chunks)
    keystone.detach(policy)
    with seeded(3):
        assert not torch.equal(recipe.predict(policy, recipe.batch()), chunks[0])


@named([*SAMPLED, "fastwam"])
def test_steps_change_between_rounds_and_are_checked_again(name: str, policy: Any) -> None:
    recipe, before = POLICIES[name], copy.deepcopy(vars(policy.config))
    own = ADAPTERS[name].default_steps(policy)
    handle = keystone.attach(policy, k=4, seed=0, check="all", keep=8)
    findings = []
    for steps in (None, 5, 1, None):
        handle.steps = steps
        handle.engine.finding = None
        assert (vars(policy.config), ADAPTERS[name].default_steps(policy)) == (before, own)
        with handle.seeded(1):
            chunk = recipe.predict(policy, recipe.batch())
        findings.append((handle.engine.finding is not None, handle.path, chunk))
    checked, paths, chunks = zip(*findings, strict=True)
    assert checked == (True, True, True, False)
    assert len(set(paths)) == 1
    assert torch.equal(chunks[0], chunks[3])
    assert (torch.stack(chunks[:3])[:, None] - torch.stack(chunks[:3])).abs().flatten(2).amax(2).fill_diagonal_(
        1
    ).min() > 1e-3
    # A round is replayed with the steps that it was drawn with.
    rounds = [handle.replay(number) for number in range(4)]
    assert torch.equal(rounds[0], rounds[3])
    assert not torch.isclose(rounds[0], rounds[1]).all()
    assert vars(policy.config) == before


@pytest.mark.parametrize("kind", ["DDPM", "DDIM"])
@pytest.mark.parametrize("name", ["diffusion", "multi_task_dit"])
def test_fewer_steps_of_a_noise_schedule(name: str, kind: str) -> None:
    objective = {"objective": "diffusion"} if name == "multi_task_dit" else {}
    policy = build(name, noise_scheduler_type=kind, num_inference_steps=4, **objective)
    recipe = POLICIES[name]
    trained = policy.config.num_train_timesteps
    try:
        for steps in (1, 3):
            handle = keystone.attach(policy, k=4, seed=0, check="all", steps=steps)
            assert recipe.predict(policy, recipe.batch(3)).isfinite().all()
            keystone.detach(policy)
        with pytest.raises(KeystoneError, match=rf"steps={trained + 1}: the noise .* {trained} steps; expected 1 to"):
            keystone.attach(policy, k=4, steps=trained + 1)
        assert keystone.attached(policy) is None
        handle = keystone.attach(policy, k=4, steps=trained)
        with pytest.raises(KeystoneError, match="expected 1 to"):
            handle.steps = trained + 1
        assert handle.steps == trained
    finally:
        keystone.detach(policy)


@named(["pi05", "xvla", "fastwam", "molmoact2"])
def test_steps_go_over_the_callers(name: str, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = POLICIES[name]
    batch, options = recipe.batch(), {}
    if name == "fastwam":
        batch["num_inference_steps"] = 7
    elif name == "xvla":
        monkeypatch.setattr(policy.config, "num_denoising_steps", 7)
    else:
        options["num_steps"] = 7
    keystone.attach(policy, k=1, steps=2)
    with seeded(3), torch.no_grad():
        chunk = policy.predict_action_chunk(dict(batch), **options)
    with seeded(3), torch.no_grad():
        assert torch.equal(chunk, build_with_steps(name, 2).predict_action_chunk(dict(recipe.batch())))


@named(["smolvla", "pi05", "diffusion"])
def test_noise_of_the_caller_takes_that_many_steps(name: str, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    twin, recipe = build_with_steps(name, 2), POLICIES[name]
    keystone.attach(policy, k=4, steps=2)
    noise = torch.ones(1, *((16, 6) if name == "diffusion" else (10, 8)))
    for one in (policy, twin):
        monkeypatch.setitem(vars(one), "predict_action_chunk", functools.partial(one.predict_action_chunk, noise=noise))
    assert torch.equal(*(recipe.predict(one, recipe.batch()) for one in (policy, twin)))


@named(["smolvla", "pi05", "evo1", "multi_task_dit"])
def test_a_checkpoint_saved_while_attached_has_the_policys_own_steps(name: str, policy: Any, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path / "alone")
    keystone.attach(policy, k=4, steps=2)
    POLICIES[name].predict(policy, POLICIES[name].batch())
    policy.save_pretrained(tmp_path / "attached")
    assert (tmp_path / "alone/config.json").read_bytes() == (tmp_path / "attached/config.json").read_bytes()


@named(["smolvla", "groot"])
def test_a_copy_takes_that_many_steps(name: str, policy: Any) -> None:
    recipe = POLICIES[name]
    handle = keystone.attach(policy, k=4, seed=0, steps=2)
    twin = copy.deepcopy(policy)
    handle.steps = 3
    chunks = [recipe.predict(one, recipe.batch()) for one in (policy, twin)]
    assert keystone.attached(twin).steps == 2
    assert not torch.isclose(*chunks).all()
    handle.steps = 2
    with handle.seeded(1), keystone.attached(twin).seeded(1):
        assert torch.equal(recipe.predict(policy, recipe.batch()), recipe.predict(twin, recipe.batch()))


@named(["smolvla", "evo1"])
def test_threads_with_steps_leave_the_policy_its_own(name: str, policy: Any) -> None:
    recipe, own = POLICIES[name], ADAPTERS[name].default_steps(policy)
    handle = keystone.attach(policy, k=4, steps=2)

    def run(i: int) -> Tensor:
        with torch.no_grad(), handle.seeded(i):
            return recipe.predict(policy, recipe.batch())

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(8)))
    assert all(torch.equal(chunk, run(i)) for i, chunk in enumerate(together))
    assert ADAPTERS[name].default_steps(policy) == own


@named(["smolvla"])
def test_a_round_that_raises_leaves_the_policy_its_own_steps(name: str, policy: Any, monkeypatch: Any) -> None:
    keystone.attach(policy, k=4, steps=2)
    monkeypatch.setitem(vars(policy.model), "embed_suffix", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        POLICIES[name].predict(policy, POLICIES[name].batch())
    assert policy.config.num_steps == 4


@named(["vla_jepa", "evo1"])
def test_a_fast_path_with_another_number_of_steps_is_refused(
    name: str, policy: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Exact with its own number, and deaf to another: the self-check with that number finds it out."""
    recipe = POLICIES[name]
    handle = keystone.attach(policy, k=4, seed=0)
    wrapped = SampleRequest.wrapped

    def deaf(request: SampleRequest, wrap: Any) -> SampleRequest:
        return replace(wrapped(request, wrap), shared=request.shared)

    monkeypatch.setattr(SampleRequest, "wrapped", deaf)
    recipe.predict(policy, recipe.batch())
    assert handle.path == "fast"
    handle.steps = 2
    recipe.predict(policy, recipe.batch())
    assert handle.path == "plain"
    assert "the fast path is not used in rounds like this one" in caplog.text
    handle.steps = None
    recipe.predict(policy, recipe.batch())
    assert handle.path == "fast"


# The caller's own choices


@named(PACKED)
def test_noise_of_the_caller_is_used_as_it_is(name: str, policy: Any) -> None:
    noise = torch.randn(1, 10, 8, generator=torch.Generator().manual_seed(0))
    alone = policy.predict_action_chunk(POLICIES[name].batch(), noise=noise)
    handle = keystone.attach(policy, k=4)
    assert torch.equal(policy.predict_action_chunk(POLICIES[name].batch(), noise=noise), alone)
    assert handle.stats["rounds"] == 0


@named(PACKED)
def test_compiled_sampler_is_refused(name: str) -> None:
    precision = torch.get_float32_matmul_precision()
    policy = POLICIES[name].build(compile_model=True)
    torch.set_float32_matmul_precision(precision)  # which compiling changes for the whole process
    with pytest.raises(KeystoneError, match="compile_model=False"):
        keystone.attach(policy, k=4)
    assert keystone.attached(policy) is None
