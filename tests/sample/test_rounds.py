"""Rounds: where noise comes from, replaying, memory, broken candidates, methods named by the user."""

import copy
import functools
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import keystone_robotics as keystone
from keystone_robotics import KeystoneError, NoValidCandidate
from keystone_robotics.handle import RoundEvent
from keystone_robotics.sample import engine as engine_module
from keystone_robotics.sample.noise import initial_noise
from tiny import POLICIES, Batch

RECIPE = POLICIES["diffusion"]
DDPM = {"noise_scheduler_type": "DDPM", "num_inference_steps": 5}

seeds = st.integers(-(2**63), 2**64 - 1)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@functools.cache
def build(name: str = "diffusion", **overrides: Any) -> Any:
    return POLICIES[name].build(**overrides).requires_grad_(False)


@functools.cache
def observation(rows: int = 1) -> Batch:
    return RECIPE.batch(rows)


@pytest.fixture(params=[{}, DDPM], ids=["DDIM", "DDPM"])
def policy(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A Diffusion Policy that draws its noise at the beginning, or at every step."""
    yield build(**request.param)
    keystone.detach(build(**request.param))


@pytest.fixture
def quick() -> Iterator[Any]:
    """A Diffusion Policy that draws its noise at the beginning."""
    yield build()
    keystone.detach(build())


def predict(policy: Any, rows: int = 1) -> Tensor:
    return RECIPE.predict(policy, observation(rows))


def rows_of(batch: Batch, rows: Sequence[int]) -> Batch:
    """Some observations of a batch, in the given order."""
    return {key: value[list(rows)] if isinstance(value, Tensor) else value for key, value in batch.items()}


def listen(handle: keystone.Handle) -> list[RoundEvent]:
    rounds: list[RoundEvent] = []
    handle.subscribe(rounds.append)
    return rounds


# Noise


@given(st.lists(seeds, min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 12), shapes, st.booleans())
def test_candidates_of_a_smaller_k_are_the_first_of_a_larger(
    rows: list[int], k: int, more: int, shape: list[int], uniform: bool
) -> None:
    few = initial_noise(rows, k, shape, uniform)
    many = initial_noise(rows, k + more, shape, uniform)
    assert few.shape == (len(rows) * k, *shape)
    assert torch.equal(few.unflatten(0, (len(rows), k)), many.unflatten(0, (len(rows), k + more))[:, :k])


@given(st.lists(seeds, min_size=1, max_size=4), st.integers(1, 6), shapes, st.booleans(), st.data())
def test_noise_of_a_row_does_not_depend_on_the_others(
    rows: list[int], k: int, shape: list[int], uniform: bool, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(rows) - 1))
    together = initial_noise(rows, k, shape, uniform)[row * k : (row + 1) * k]
    assert torch.equal(initial_noise([rows[row]], k, shape, uniform), together)


@given(seeds, st.booleans())
def test_noise_has_the_right_distribution(seed: int, uniform: bool) -> None:
    noise = initial_noise([seed], 8, (50, 7), uniform)
    assert abs(float(noise.mean())) < 0.15
    assert abs(float(noise.std()) - (3**-0.5 if uniform else 1.0)) < 0.1
    assert len(noise.unique(dim=0)) == 8
    if uniform:
        assert noise.abs().max() <= 1


# Seeds


def test_seeds_of_rows_follow_them_into_any_batch(policy: Any) -> None:
    handle = keystone.attach(policy, k=4)
    rounds = listen(handle)
    batch = observation(3)
    with handle.seeded([7, 8, 9]):
        together = RECIPE.predict(policy, batch)
    with handle.seeded([9, 7]):
        turned = RECIPE.predict(policy, rows_of(batch, [2, 0]))
    torch.testing.assert_close(turned, together[[2, 0]], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rounds[1].candidates, rounds[0].candidates[[2, 0]], rtol=1e-4, atol=1e-4)
    assert rounds[0].seeds == (7, 8, 9)
    assert list(rounds[1].selection.index) == [rounds[0].selection.index[row] for row in (2, 0)]


def test_choice_does_not_depend_on_the_seeds_of_other_rows(quick: Any) -> None:
    handle = keystone.attach(quick, k=16, tau=0.0)
    candidates = torch.randn(1, 16, 16, 6, generator=torch.Generator().manual_seed(0))

    def choice(seed: int) -> int:
        with handle.seeded(seed):
            return int(handle.engine.selector.select(candidates).index[0])

    assert len({choice(seed) for seed in range(20)}) == 1


def test_one_seed_serves_all_rows(policy: Any) -> None:
    handle = keystone.attach(policy, k=4)
    rounds = listen(handle)
    for _ in range(2):
        with handle.seeded(7):
            predict(policy, 3)
    with handle.seeded(8):
        predict(policy, 3)
    assert torch.equal(rounds[0].candidates, rounds[1].candidates)
    assert not torch.equal(rounds[0].candidates, rounds[2].candidates)
    assert len(set(rounds[0].seeds)) == 3, "rows must not share their noise"


def test_wrong_number_of_seeds(quick: Any) -> None:
    handle = keystone.attach(quick, k=4)
    with handle.seeded([1, 2]), pytest.raises(ValueError, match="2 seeds were given for a batch of 3 observations"):
        predict(quick, 3)
    assert handle.stats["rounds"] == 0
    assert predict(quick, 3).isfinite().all()


def test_seeds_of_nested_blocks(quick: Any) -> None:
    handle = keystone.attach(quick, k=2)
    rounds = listen(handle)
    with handle.seeded([1]):
        with handle.seeded([2]):
            predict(quick)
        predict(quick)
    predict(quick)
    assert [chosen.seeds for chosen in rounds[:2]] == [(2,), (1,)]
    assert rounds[2].seeds not in ((1,), (2,))


def test_seeds_belong_to_the_thread(quick: Any) -> None:
    handle = keystone.attach(quick, k=2)
    rounds = listen(handle)
    with handle.seeded([5]):
        other = threading.Thread(target=predict, args=(quick,))
        other.start()
        other.join()
        predict(quick)
    assert len(rounds) == 2
    assert rounds[0].seeds != (5,)
    assert rounds[1].seeds == (5,)


def test_seed_of_the_session(policy: Any) -> None:
    runs = []
    for _ in range(2):
        handle = keystone.attach(policy, k=4, seed=3)
        rounds = listen(handle)
        for _ in range(2):
            predict(policy)
        runs.append([chosen.candidates for chosen in rounds])
        keystone.detach(policy)
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][0], runs[0][1]), "every round draws anew"


# The global generator


def test_global_generator_is_left_alone(policy: Any) -> None:
    handle = keystone.attach(policy, k=4, seed=0)
    for _ in range(2):  # with the self-check and without
        state = torch.get_rng_state()
        predict(policy, 3)
        assert torch.equal(torch.get_rng_state(), state)
    handle.engine.seed = None
    with handle.seeded(1):
        predict(policy, 3)
    assert torch.equal(torch.get_rng_state(), state)
    predict(policy, 3)
    assert not torch.equal(torch.get_rng_state(), state)


def test_global_seed_repeats_a_run(policy: Any) -> None:
    keystone.attach(policy, k=4)
    predict(policy)
    runs = []
    for seed in (0, 0, 1):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            runs.append(torch.stack([predict(policy) for _ in range(2)]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[0][0], runs[0][1])


# Replaying


def test_replay_is_exact(policy: Any) -> None:
    handle = keystone.attach(policy, k=4, keep=2)
    rounds = listen(handle)
    with handle.seeded([4, 5, 6]):
        predict(policy, 3)
    assert torch.equal(handle.replay(0), rounds[0].candidates)
    predict(policy)
    state = torch.get_rng_state()
    for chosen in rounds:
        assert torch.equal(handle.replay(chosen.number), chosen.candidates)
    assert torch.equal(torch.get_rng_state(), state)
    assert handle.stats["rounds"] == 2, "a replay is not a round"


def test_replay_of_a_round_that_is_not_kept(quick: Any) -> None:
    handle = keystone.attach(quick, k=4, keep=2)
    for _ in range(3):
        predict(quick)
    with pytest.raises(KeyError, match=r"round 0 cannot be replayed; kept: \[1, 2\]"):
        handle.replay(0)
    keystone.detach(quick)
    handle = keystone.attach(quick, k=4)
    predict(quick)
    with pytest.raises(KeyError, match=r"none is kept: attach.*keep=8"):
        handle.replay(0)


@pytest.mark.parametrize("keep", [0, 2])
def test_candidates_are_not_kept(quick: Any, keep: int) -> None:
    handle = keystone.attach(quick, k=4, keep=keep)
    alive: list[weakref.ref[Tensor]] = []
    handle.subscribe(lambda chosen: alive.append(weakref.ref(chosen.candidates)))
    predict(quick)
    gc.collect()
    assert [reference() for reference in alive] == [None]
    assert len(handle.engine.kept) == min(keep, 1)


# Memory


@pytest.fixture
def small_memory(quick: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Lets the denoiser run out of memory with more rows than given; the list holds the rows of its first steps."""
    network = quick.diffusion.unet
    forward = network.forward

    def limit(rows: int) -> list[int]:
        tried: list[int] = []

        def limited(sample: Tensor, times: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if not tried or tried[-1] != len(sample):
                tried.append(len(sample))
            if len(sample) > rows:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory (simulated)")
            return forward(sample, times, *args, **kwargs)

        monkeypatch.setitem(vars(network), "forward", limited)
        return tried

    return limit


def test_rounds_go_on_with_less_memory(
    quick: Any, small_memory: Callable[[int], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    handle = keystone.attach(quick, k=16, seed=0, keep=2)
    rounds = listen(handle)
    tried = small_memory(5)
    with caplog.at_level(logging.WARNING, "keystone"):
        predict(quick)  # the self-check runs on what was drawn
        assert tried[:3] == [16, 8, 4]
        tried.clear()
        predict(quick)
    assert tried == [16, 8, 4], "every round tries the full K"
    assert [chosen.candidates.shape[1] for chosen in rounds] == [4, 4]
    assert handle.k == 16
    (warning,) = caplog.records
    assert "out of memory at K=16" in warning.message
    assert torch.equal(handle.replay(1), rounds[1].candidates)
    small_memory(16)
    predict(quick)
    assert rounds[2].candidates.shape[1] == 16


def test_fewer_candidates_are_the_first_of_all(quick: Any, small_memory: Callable[[int], list[int]]) -> None:
    handle = keystone.attach(quick, k=16)
    rounds = listen(handle)
    with handle.seeded([1, 2, 3]):
        predict(quick, 3)
        small_memory(12)
        predict(quick, 3)
    assert rounds[1].candidates.shape[1] == 4
    torch.testing.assert_close(rounds[1].candidates, rounds[0].candidates[:, :4], rtol=1e-4, atol=1e-4)


def test_no_memory_for_one(quick: Any, small_memory: Callable[[int], list[int]]) -> None:
    handle = keystone.attach(quick, k=4)
    tried = small_memory(0)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        predict(quick)
    assert tried == [4, 2, 1]
    assert handle.stats["rounds"] == 0


# Broken candidates


def break_rows(policy: Any, monkeypatch: pytest.MonkeyPatch, rows: list[int], value: float = float("nan")) -> None:
    """The denoiser's output is not finite in some rows."""
    network = policy.diffusion.unet
    forward = network.forward

    def broken(*args: Any, **kwargs: Any) -> Tensor:
        out = forward(*args, **kwargs).clone()
        out[rows] = value
        return out

    monkeypatch.setitem(vars(network), "forward", broken)


def test_broken_candidates_are_never_executed(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = keystone.attach(quick, k=4, check=False)
    rounds = listen(handle)
    break_rows(quick, monkeypatch, [0, 1, 3, 4, 5, 6])  # of two rows of four: 2 and 7 are whole
    for number in range(4):
        with handle.seeded(number), pytest.warns(RuntimeWarning, match="dropped 6 of 8 candidates"):
            chunk = predict(quick, 2)
        assert chunk.isfinite().all()
        assert list(rounds[-1].selection.index) == [2, 3]
    assert handle.stats["dropped"] == 24
    assert handle.stats["chunks"] == 8


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7]])
def test_nothing_is_executed_if_a_row_has_no_candidate(
    quick: Any, monkeypatch: pytest.MonkeyPatch, rows: list[int]
) -> None:
    handle = keystone.attach(quick, k=4, check=False)
    break_rows(quick, monkeypatch, rows)
    with pytest.raises(NoValidCandidate, match="usable"):
        predict(quick, 2)
    assert handle.stats["rounds"] == 0


# What is reported


def test_rounds_are_reported_and_counted(quick: Any) -> None:
    handle = keystone.attach(quick, k=4)
    rounds = listen(handle)
    chunks = [predict(quick, rows) for rows in (1, 3)]
    assert [chosen.number for chosen in rounds] == [0, 1]
    for chosen, chunk, rows in zip(rounds, chunks, (1, 3), strict=True):
        assert isinstance(chosen, RoundEvent)
        assert chosen.candidates.shape == (rows, 4, 16, 6)
        assert len(chosen.seeds) == len(chosen.selection.index) == rows
        picked = chosen.candidates[range(rows), chosen.selection.index]
        assert torch.equal(picked, chosen.selection.chunk)
        assert torch.equal(picked[:, 1:9], chunk), "the executed part of the chosen candidate"
        assert chosen.times.sample > 0
        assert chosen.times.select > 0
    assert handle.last is rounds[-1].selection
    stats = handle.stats
    assert (stats["rounds"], stats["chunks"], stats["dropped"]) == (2, 4, 0)
    assert stats["clustered"] == sum(int(chosen.selection.clustered.sum()) for chosen in rounds)
    assert stats["sampling_seconds"] == pytest.approx(sum(chosen.times.sample for chosen in rounds))
    consensus = [float(value) for chosen in rounds for value in chosen.selection.consensus]
    assert stats["consensus"] == pytest.approx(sum(consensus) / 4)


def test_k_may_change_between_rounds(quick: Any) -> None:
    handle = keystone.attach(quick, k=4)
    rounds = listen(handle)
    predict(quick)
    handle.k = 1
    predict(quick)
    handle.k = 6
    predict(quick)
    assert [(event.k, event.path) for event in rounds] == [(4, "plain"), (1, "own"), (6, "plain")]


def test_more_candidates_are_refused_where_the_rule_does_not_go_with_the_horizon() -> None:
    """With K = 1 nothing is adaptive, so that a rule that looks back may be set; then K stays 1."""
    handle = keystone.attach(RECIPE.build(), k=4, rule="medoid", execute="auto")
    handle.k = 1
    handle.rule = "coherent"
    for k in (4, "2..4"):
        with pytest.raises(ValueError, match=r"execute=.* with rule coherent, which looks back"):
            handle.k = k
    assert handle.k == 1
    handle.rule = "medoid"
    handle.k = 4
    assert (handle.k, handle.spec.execute) == (4, handle.execute)


# Policies that step out of line


def test_objects_that_are_no_modules() -> None:
    class Objective:
        horizon, action_dim = 8, 2

        def conditional_sample(self, model: nn.Module, batch_size: int, conditioning_vec: Tensor) -> Tensor:
            return model(torch.randn(batch_size, 8, 2) + conditioning_vec[:, None])

    class Policy:
        def __init__(self) -> None:
            self.objective, self.model = Objective(), nn.Linear(2, 2)

        def act(self, observation: Tensor) -> Tensor:
            return self.objective.conditional_sample(self.model, len(observation), observation)

    policy = Policy()
    policy.model.requires_grad_(False)
    handle = keystone.attach(policy, k=4, seed=0, site="objective.conditional_sample")
    assert policy.act(torch.zeros(3, 2)).shape == (3, 8, 2)
    assert handle.stats["rounds"] == 1
    keystone.detach(policy)
    assert type(policy.objective) is Objective
    assert vars(policy.objective) == {}


def test_fixed_seed_of_fastwam_is_for_one_candidate_only() -> None:
    recipe, policy = POLICIES["fastwam"], build("fastwam", inference_seed=42)
    batch = recipe.batch(3)
    alone = recipe.predict(policy, batch)
    handle = keystone.attach(policy, k=1)
    assert torch.equal(recipe.predict(policy, batch), alone)
    handle.k = 4
    rounds = listen(handle)
    for _ in range(2):
        recipe.predict(policy, batch)
    keystone.detach(policy)
    first, second = (chosen.candidates for chosen in rounds)
    assert first.shape == (3, 4, 8, 6)
    everything = torch.cat([first.flatten(0, 1), second.flatten(0, 1)])
    spread = (everything[:, None] - everything).abs().amax((2, 3)) + torch.eye(len(everything))
    assert spread.min() > 1e-2, "candidates, rows and rounds all differ"


def test_wall_x_with_padding_on_the_right() -> None:
    recipe, policy = POLICIES["wall_x"], build("wall_x")
    tokenizer = policy.model.processor.tokenizer
    before, tokenizer.padding_side = tokenizer.padding_side, "right"
    handle = keystone.attach(policy, k=4, seed=0, check="all")
    batch = {**recipe.batch(3), "task": ["push", "push the cube to the left", "grasp it"]}
    state = torch.get_rng_state()
    try:
        assert recipe.predict(policy, batch).isfinite().all()
    finally:
        tokenizer.padding_side = before
        keystone.detach(policy)
    assert handle.engine.finding is not None
    assert torch.equal(torch.get_rng_state(), state)


# Methods that the user names


class HomeGrown(nn.Module):
    """Encodes an observation (B, 4), then denoises (B, 8, 2)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.network, self.encoded = nn.Linear(4, 6), nn.Linear(8, 2), 0

    def encode(self, observation: Tensor) -> Tensor:
        self.encoded += 1
        return self.encoder(observation)

    def act(self, observation: Tensor) -> Tensor:
        context = self.encode(observation)[:, None].expand(-1, 8, -1)
        actions = torch.randn(len(observation), 8, 2)
        for _ in range(4):
            actions = actions + self.network(torch.cat([context, actions], -1)) / 4
        return actions


@pytest.mark.parametrize("rows", [1, 3])
def test_site_of_a_home_grown_policy(rows: int) -> None:
    with torch.random.fork_rng():
        policy = HomeGrown().requires_grad_(False)
    handle = keystone.attach(policy, k=8, seed=0, site="act", keep=1)
    rounds = listen(handle)
    state = torch.get_rng_state()
    chunk = policy.act(torch.ones(rows, 4))
    assert torch.equal(torch.get_rng_state(), state)
    candidates = rounds[0].candidates
    assert policy.encoded == 1
    assert candidates.shape == (rows, 8, 8, 2)
    assert len(candidates.flatten(0, 1).unique(dim=0)) == rows * 8
    assert torch.equal(chunk, candidates[range(rows), rounds[0].selection.index])
    assert torch.equal(handle.replay(0), candidates)
    keystone.detach(policy)
    assert type(policy) is HomeGrown
    assert policy.act(torch.ones(rows, 4)).shape == chunk.shape


@pytest.mark.parametrize("site", ["diffusion.generate_actions", "diffusion.conditional_sample"])
def test_site_of_a_lerobot_policy(quick: Any, site: str) -> None:
    chunks, sampled = [], []
    for options in ({"site": site}, {}):
        handle = keystone.attach(quick, k=6, seed=0, check=False, **options)
        rounds = listen(handle)
        calls = 0
        encode = quick.diffusion._prepare_global_conditioning

        def counted(batch: Batch, encode: Callable[[Batch], Tensor] = encode) -> Tensor:
            nonlocal calls
            calls += 1
            return encode(batch)

        vars(quick.diffusion)["_prepare_global_conditioning"] = counted
        try:
            chunks.append(predict(quick))
        finally:
            del vars(quick.diffusion)["_prepare_global_conditioning"]
        assert calls == 1
        sampled.append(rounds[0].candidates)
        keystone.detach(quick)
    assert chunks[0].shape == chunks[1].shape
    assert sampled[0].shape == (1, 6, 8 if site.endswith("generate_actions") else 16, 6)
    assert len(sampled[0].flatten(0, 1).unique(dim=0)) == 6


def test_site_that_writes_in_place() -> None:
    recipe, policy = POLICIES["eo1"], build("eo1")
    keystone.attach(policy, k=4, site="model.sample_actions")
    try:
        with pytest.raises(
            KeystoneError,
            match=r"cannot be vectorised over its noise: it writes candidates in place .* write an adapter",
        ):
            recipe.predict(policy, recipe.batch())
    finally:
        keystone.detach(policy)
    assert recipe.predict(policy, recipe.batch()).isfinite().all()


def test_site_that_draws_nothing() -> None:
    policy = nn.Module()
    policy.__class__ = type("Constant", (nn.Module,), {"act": lambda self, x: x[:, None].expand(-1, 8, -1) * 1.0})
    keystone.attach(policy, k=4, site="act")
    with pytest.raises(KeystoneError, match="all candidates are equal"):
        policy.act(torch.ones(1, 2))


# Rules that look back


@pytest.mark.parametrize("name", ["diffusion", "fastwam"])
def test_previous_chunk_is_handed_over_and_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastWAM's override is on the policy itself, where `reset` is watched too."""
    recipe, policy = POLICIES[name], build(name)
    original = type(policy)
    handle = keystone.attach(policy, k=4, rule="coherent", decay=0.7)
    rounds = listen(handle)
    handed: list[Any] = []
    select_batch = type(handle.rule).select_batch

    def spy(rule: Any, candidates: Any) -> Any:
        handed.append((rule.previous, rule.decay))
        return select_batch(rule, candidates)

    monkeypatch.setattr(type(handle.rule), "select_batch", spy)
    batch, steps = recipe.batch(2), policy.config.n_action_steps
    policy.reset()
    for _ in range(steps + 1):
        policy.select_action(dict(batch))
    policy.reset()
    policy.select_action(dict(batch))
    policy.reset()
    keystone.detach(policy)
    assert type(policy) is original
    assert [decay for _, decay in handed] == [0.7] * 3
    first, second, after_reset = (previous for previous, _ in handed)
    assert first is None
    torch.testing.assert_close(torch.as_tensor(second), rounds[0].selection.chunk[:, steps:].double())
    assert after_reset is None


# What a review found


def test_one_candidate_that_fits_into_memory_proves_nothing_about_several(quick: Any, monkeypatch: Any) -> None:
    """The first round halves K to 1; the next, with a wrong draw, must be checked."""
    handle = keystone.attach(quick, k=4)
    draw = engine_module.SeededRequest.draw

    def small(self: Any, path: str, k: int) -> Any:
        if k > 1:
            raise torch.cuda.OutOfMemoryError("full")
        return draw(self, path, k)

    with monkeypatch.context() as patch:
        patch.setattr(engine_module.SeededRequest, "draw", small)
        predict(quick)

    def wrong(self: Any, path: str, k: int) -> Any:
        candidates, noises = draw(self, path, k)
        return candidates + 1, noises

    monkeypatch.setattr(engine_module.SeededRequest, "draw", wrong)
    with pytest.raises(KeystoneError, match="self-check failed"):
        predict(quick)
    assert handle.k == 4


def test_a_rehearsal_evicts_no_kept_round(quick: Any) -> None:
    handle = keystone.attach(quick, k=4, keep=1)
    predict(quick)
    with handle.rehearsal():
        predict(quick)
    assert handle.replay(0).shape[:2] == (1, 4)


def test_what_outlives_a_round_holds_no_autograd_graph() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def act(self, observation: Tensor) -> Tensor:
            return observation[:, None] + self.scale * torch.randn(len(observation), 8, 2)

    policy = Policy()
    handle = keystone.attach(policy, k=4, site="act")
    rounds = listen(handle)
    assert policy.act(torch.zeros(1, 2)).requires_grad, "the caller may differentiate"
    assert not rounds[0].candidates.requires_grad
    assert not handle.last.chunk.requires_grad
    copy.deepcopy(policy)


@pytest.mark.parametrize(("name", "value"), [("rule", "mediod"), ("metric", "l3"), ("execute", 0), ("space", 7)])
def test_settings_of_a_handle_are_checked_when_they_are_set(quick: Any, name: str, value: Any) -> None:
    handle = keystone.attach(quick, k=4)
    with pytest.raises((KeystoneError, ValueError, TypeError)):
        setattr(handle, name, value)
    handle.rule = "medoid"
    predict(quick)
    assert handle.last.rule == "medoid"
