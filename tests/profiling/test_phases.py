"""Where a round's time goes: by a clock turned by hand, and on real policies."""

import time

import pytest
import torch
from profiling_timed import Timed

import keystone_robotics as keystone
from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.families import ADAPTERS
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest
from tiny import POLICIES

OBSERVATION = torch.zeros(1, 2)


def milliseconds(times):
    return tuple(round(1e3 * seconds, 6) for seconds in times[:3])


def attached(policy, **options):
    """The handle, and the list of its events."""
    events = []
    handle = keystone.attach(policy, **options)
    handle.subscribe(events.append)
    return handle, events


def test_what_encode_sample_and_select_take_is_told_apart(timed, clock):
    def slow_rule(round):
        clock.turn(3)
        return 0

    handle, events = attached(timed, k=16, rule=slow_rule, check=False)
    timed(OBSERVATION)
    handle.k = 1
    timed(torch.zeros(3, 2))
    wide, own = events
    assert (milliseconds(wide.times), wide.k, wide.path) == ((5, 26, 3), 16, "plain")
    assert (milliseconds(own.times), own.k, own.path, own.seeds) == ((5, 10, 0), 1, "own", ())
    assert not wide.times.mixed
    assert not own.times.mixed
    keystone.detach(timed)
    assert set(vars(timed)) == set(vars(type(timed)(clock)))


def test_the_self_check_is_not_in_the_times(timed):
    _, events = attached(timed, k=4)
    timed(OBSERVATION)
    assert timed.sampled == [4, 1, 1, 1]
    assert milliseconds(events[0].times)[:2] == (5, 10)


def test_only_the_attempt_that_fits_into_memory_is_in_the_times(clock):
    class Late(Timed):
        """Runs out of memory after a while."""

        def sample(self, context, noise):
            self.clock.turn(7)
            return super().sample(context, noise)

    policy = Late(clock, fits=8)
    _, events = attached(policy, k=16, check=False)
    policy(OBSERVATION)
    assert (events[0].k, *milliseconds(events[0].times)[:2]) == (8, 5, 17)


@pytest.mark.parametrize("k", [1, 4])
def test_a_round_that_failed_is_not_in_the_times_of_the_next(k, timed):
    _, events = attached(timed, k=k, check=False)
    timed.fits = 0
    with pytest.raises(torch.cuda.OutOfMemoryError):
        timed(OBSERVATION)
    timed.fits = 100
    timed(OBSERVATION)
    assert [milliseconds(event.times)[:2] for event in events] == [(5, 10)]


def test_rounds_to_which_nobody_listened_are_not_in_the_times_of_the_next(timed):
    handle = keystone.attach(timed, k=1)
    timed(OBSERVATION)
    events = []
    handle.subscribe(events.append)
    timed(OBSERVATION)
    assert milliseconds(events[0].times) == (5, 10, 0)


class Loop(torch.nn.Module):
    """Encodes inside its sampler: 2 ms vision, 4 ms language, then 3 steps of 1 ms. ``seen`` says in which calls the steps can
    be seen, in those with the policy's own noise ("single") or with noise that it is given ("wide").
    """

    def __init__(self, clock, seen):
        super().__init__()
        self.clock, self.seen = clock, seen
        self.name = "loop"

    def see(self):
        self.clock.turn(2)

    def step(self, x):
        self.clock.turn(1)
        return x * 0.9

    def act(self, noise=None, rows=1):
        self.see()
        self.clock.turn(4)
        step = self.step if ("single" if noise is None else "wide") in self.seen else lambda x: Loop.step(self, x)
        x = torch.randn(rows, 8, 2) if noise is None else noise
        for _ in range(3):
            x = step(x)
        return x


class LoopOverride(SamplerOverride):
    def act(self, noise=None, rows=1):
        act = super().act
        return self._keystone.run(
            SampleRequest(
                single=lambda: act(rows=rows),
                wide=lambda noise, k: act(noise),
                noise=NoiseSpec(rows, (8, 2), "cpu"),
            )
        )


class LoopAdapter(Adapter):
    name = "loop"
    override = LoopOverride

    def owns(self, policy):
        return isinstance(policy, Loop)

    def module(self, policy):
        return policy

    def encoder_methods(self, policy):
        return [(policy, "see")]

    def step_methods(self, policy):
        return [(policy, "step")]

    def window(self, config):
        return Window(2, 0, 8)


@pytest.mark.parametrize(
    ("k", "seen", "expected"),
    [
        (1, "single", (6, 3)),
        (1, "", (2, 7)),
        (4, "single wide", (6, 3)),
        (4, "", (2, 7)),
        (4, "single", (2, 7)),  # the steps of the self-check are not those of the round
    ],
)
def test_an_encoder_inside_the_sampler(k, seen, expected, clock, monkeypatch):
    monkeypatch.setitem(ADAPTERS, "loop", LoopAdapter())
    policy = Loop(clock, seen)
    _, events = attached(policy, k=k)
    policy.act()
    policy.act()
    for event in events:
        assert milliseconds(event.times)[:2] == expected
        # Unseen, the language model's 4 ms cannot be told from denoising, and the event says so.
        assert event.times.mixed is (expected == (2, 7))
        assert event.times.encode_inside == event.times.encode
    keystone.detach(policy)
    assert not {"act", "see", "step", "_keystone"} & set(vars(policy))


def test_a_replay_is_not_in_the_times_of_the_next_round(clock, monkeypatch):
    monkeypatch.setitem(ADAPTERS, "loop", LoopAdapter())
    policy = Loop(clock, "")
    handle, events = attached(policy, k=4, keep=1)
    policy.act()
    handle.replay(0)
    policy.act()
    assert milliseconds(events[1].times)[:2] == (2, 7)


@pytest.mark.parametrize(
    ("name", "inside", "mixed"), [("smolvla", True, False), ("groot", False, False), ("xvla", True, True)]
)
def test_real_policies(name, inside, mixed):
    recipe = POLICIES[name]
    policy = recipe.build().requires_grad_(False)
    handle, events = attached(policy, k=2, check=False)
    for handle.k in (2, 1):
        policy.reset()
        begin = time.perf_counter()
        policy.select_action(recipe.batch())
        total = time.perf_counter() - begin
        times = events[-1].times
        assert times.encode > 0
        assert times.sample > 0
        assert times.encode + times.sample + times.select < total
        assert (times.encode_inside > 0, times.mixed) == (inside, mixed)
    assert [event.k for event in events] == [2, 1]
    keystone.detach(policy)
    assert not any("keystone" in key for module in policy.modules() for key in vars(module))
